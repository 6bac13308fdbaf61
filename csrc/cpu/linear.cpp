// A linear layer in one launch, and its pullback. After the product of a panel, its bias and activation are applied while the panel
// is in the cache.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/copy.h"
#include "cpu/large_product.h"
#include "cpu/matmul.h"
#include "cpu/pool.h"
#include "cpu/small_product.h"
#include "cpu/vector.h"
#include "families/activation_functors.h"
#include "families/executed.h"
#include "families/matmul.h"
#include "launch/check.h"
#include "math/functors.h"

namespace pb::cpu {
namespace {

constexpr int64_t kPanelBytes = 4 << 20;  // a panel of the output fits into the L3 cache; BLAS packs w once per panel
constexpr int64_t kPanelRows = 512;       // with fewer rows, packing w costs more time than the cached panel saves
constexpr int64_t kGrain = 16 * 1024;     // the fewest elements per thread for bias and activation: about 5 us
constexpr int64_t kStrip = 64;            // the fewest columns of a strip

template <class F> void visit_wide(DType dtype, F&& f) {
  if (dtype == DType::f32) f(float());
  else f(double());
}

// Returns v (…, n) as (rows, n), and true if this view is right because one stride covers the leading axes.
std::pair<View, bool> as_rows(const View& v) {
  const int last = v.ndim - 1;
  View lead = v, rows = v;
  lead.ndim = last;
  const int64_t count = lead.size(), n = v.shape[last];
  collapse(&lead, 1);
  rows.ndim = 2;
  rows.shape[0] = count, rows.shape[1] = n;
  rows.stride[0] = lead.ndim ? lead.stride[0] : n * item_size(v.dtype), rows.stride[1] = v.stride[last];
  return {rows, lead.ndim <= 1};
}

// Returns v (…, n) as a (rows, n) that BLAS can read: a view, or a copy if BLAS cannot read v.
View rows_of(const View& v, DType wide, Scratch& scratch) {
  auto [rows, is_even] = as_rows(v);
  const int last = v.ndim - 1;
  const int64_t n = v.shape[last];
  if (rows.size() == 0) return rows.dtype = wide, rows;
  if (is_even) return readable(rows, wide, scratch);
  View copy = v;
  copy.dtype = wide;
  copy.data = static_cast<char*>(scratch.take_bytes(copy.bytes()));
  int64_t stride = item_size(wide);
  for (int d = last; d >= 0; --d) copy.stride[d] = stride, stride *= v.shape[d];
  assign(copy, v);
  rows.data = copy.data, rows.dtype = wide;
  rows.stride[0] = n * item_size(wide), rows.stride[1] = item_size(wide);
  return rows;
}

// Returns rows_of(v), copied if necessary so that the elements of each row are contiguous.
View dense_rows(const View& v, DType wide, Scratch& scratch) {
  const View rows = rows_of(v, wide, scratch);
  const int64_t size = item_size(wide);
  if (rows.shape[1] <= 1 || rows.stride[1] == size) return rows;
  View copy = flat_view(scratch.take_bytes(rows.bytes()), wide, 0);
  copy.ndim = 2;
  std::memcpy(copy.shape, rows.shape, sizeof copy.shape);
  copy.stride[0] = rows.shape[1] * size, copy.stride[1] = size;
  assign(copy, rows);
  return copy;
}

// Returns the layout of rows_of(v): a view with its shape and strides, whose data is not meant to be read.
View rows_laid_out(const View& v, DType wide) {
  auto [rows, is_even] = as_rows(v);
  if (is_even && rows.size() > 0) return laid_out(rows, wide);
  rows.stride[0] = rows.shape[1] * item_size(wide), rows.stride[1] = item_size(wide), rows.dtype = wide;
  return rows;
}

Matrix matrix_of(const View& v) {
  Matrix matrix{v.data, 1, false};
  as_matrix(v, matrix);
  return matrix;
}

// Computes y = f(y + bias) for rows of n elements. bias may be null.
template <class F, class A> void finish_rows(F f, int64_t rows, int64_t n, A* __restrict y, const A* __restrict bias) {
  if (!bias) n *= rows, rows = 1;
  for (int64_t i = 0; i < rows; ++i, y += n) {
    if (bias) {
      for (int64_t j = 0; j < n; ++j) y[j] = f(y[j] + bias[j]);
    } else {
      for (int64_t j = 0; j < n; ++j) y[j] = f(y[j]);
    }
  }
}

// Computes y = a @ b, and adds the bias if the chosen kernel can. Returns true if the caller still has to add a bias. Never applies
// the activation.
bool product_to_finish(DType wide, int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const char* bias,
                       char* y) {
  bool done = false;
  visit_wide(wide, [&](auto zero) {
    using A = decltype(zero);
    const A* add = reinterpret_cast<const A*>(bias);
    A* to = reinterpret_cast<A*>(y);
    done = !is_tiny_product(m, n, k) && (large_product(m, n, k, a, b, add, to) || small_product(m, n, k, a, b, add, to));
  });
  if (!done) product(wide, m, n, k, a, b, y);
  return !done && bias;
}

// Computes y = f(a @ b + bias) without a second pass over y. Returns false and does nothing if large_product, the only kernel that
// can, does not compute this product.
bool product_and_finish(const Launch& launch, DType wide, int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b,
                        const char* bias, char* y) {
  bool done = false;
  kernels::visit_activation(int(launch.ints[0]), [&](auto f, auto) {
    visit_wide(wide, [&](auto zero) {
      using A = decltype(zero);
      using F = decltype(f);
      void (*finish)(int64_t, A*) = [](int64_t count, A* part) { finish_rows<F, A>(F{}, 1, count, part, nullptr); };
      if (!launch.ints[0]) finish = nullptr;
      done = large_product(m, n, k, a, b, reinterpret_cast<const A*>(bias), reinterpret_cast<A*>(y), finish);
    });
  });
  return done;
}

// Computes the column sums of x (rows, width), each in the order of the rows.
template <int kVectors, class A> void sum_strip(int64_t rows, int64_t width, const A* x, int64_t step, A* sums) {
  Vector<A> sum[kVectors] = {};
  for (int64_t i = 0; i < rows; ++i, x += step)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      sum[v] += kVectors > 1 || width == kWidth<A> ? load_vector(x + v * kWidth<A>) : load_part(x, width);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) store_part(sums + v * kWidth<A>, sum[v], std::min<int64_t>(width, kWidth<A>));
}
template <class A> void sum_columns(int64_t rows, int64_t width, const A* x, int64_t step, A* sums) {
  constexpr int64_t kMany = 4 * kWidth<A>;
  int64_t j = 0;
  for (; j + kMany <= width; j += kMany) sum_strip<4>(rows, kMany, x + j, step, sums + j);
  for (; j < width; j += kWidth<A>) sum_strip<1>(rows, std::min<int64_t>(kWidth<A>, width - j), x + j, step, sums + j);
}

// Computes gz, the pullback of g through the activation with output y, for rows [begin, end) and columns [first, first + width). If
// gz is null, there is no activation and gz is g. Also computes the sums of gz's columns over these rows, unless `sums` is null.
template <class F, class A>
void pull_part(F f, const View& g, const View& y, int64_t begin, int64_t end, int64_t first, int64_t width, A* gz, A* sums) {
  const int64_t n = g.shape[1], step = g.stride[0] / int64_t(sizeof(A)), step_y = y.stride[0] / int64_t(sizeof(A));
  const A* from = reinterpret_cast<const A*>(g.data) + begin * step + first;
  int64_t from_step = step;
  if (gz) {
    const A* value = reinterpret_cast<const A*>(y.data) + begin * step_y + first;
    A* __restrict to = gz + begin * n + first;
    const bool together = width == n && step == n && step_y == n;  // the rows form one long row
    const int64_t lines = together ? 1 : end - begin, length = together ? (end - begin) * n : width;
    for (int64_t i = 0; i < lines; ++i)
      for (int64_t j = 0; j < length; ++j) to[i * n + j] = f(from[i * step + j], value[i * step_y + j], value[i * step_y + j]);
    from = to, from_step = n;
  }
  if (sums) sum_columns(end - begin, width, from, from_step, sums);
}

// Adds up the rows of x (rows, n) in pairs of neighbours. The result is the first row.
template <class A> void add_neighbours(int64_t rows, int64_t n, A* x) {
  for (int64_t apart = 1; apart < rows; apart *= 2)
    for (int64_t r = 0; r + apart < rows; r += 2 * apart)
      for (int64_t j = 0; j < n; ++j) x[r * n + j] += x[(r + apart) * n + j];
}

// The strips of columns that threads share.
struct Strips {
  int64_t count, width;
};
Strips strips_of(int64_t n) {
  const int64_t count = std::max<int64_t>(1, n / kStrip);
  return {count, (n + count - 1) / count};
}

// Returns the additions of the column sums of a matrix (rows, n), which include the padding of vectors.
template <class A> int64_t additions_of_sums(int64_t rows, int64_t n) {
  const auto [strips, width] = strips_of(n);
  int64_t padded = 0;
  for (int64_t first = 0; first < n; first += width) padded += whole<A>(std::min(width, n - first));
  return rows * padded + std::max<int64_t>(0, kernels::order_blocks(rows) - 1) * n;
}

// Returns gz, the pullback of g through the activation: g itself if the activation is none, otherwise a matrix in scratch memory.
// Also computes gb if it is needed, in the order of a product with ones (families/order.h): threads take blocks of rows and strips
// of columns.
Matrix pull_activation(const Launch& launch, const View& g, const View& y, DType wide, Scratch& scratch) {
  const int64_t rows = g.shape[0], n = g.shape[1], activation = launch.ints[0];
  const View& gb = launch.out(2);
  char* gz = activation ? static_cast<char*>(scratch.take_bytes(rows * n * item_size(wide))) : nullptr;
  if (!gz && !gb.data) return matrix_of(g);
  const int64_t blocks = std::max<int64_t>(1, kernels::order_blocks(rows)), height = std::min(rows, kOrderBlock);
  const auto [strips, width] = strips_of(n);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, height * width));
  kernels::visit_activation(int(activation), [&](auto, auto f) {
    visit_wide(wide, [&](auto zero) {
      using A = decltype(zero);
      A* const sums = gb.data ? scratch.take<A>(blocks * n) : nullptr;
      parallel_for(blocks * strips, grain, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t block = task / strips, first = task % strips * width;
          pull_part<decltype(f), A>(f, g, y, block * kOrderBlock, std::min(rows, (block + 1) * kOrderBlock), first,
                                    std::min(width, n - first), reinterpret_cast<A*>(gz),
                                    sums ? sums + block * n + first : nullptr);
        }
      });
      if (!sums) return;
      add_neighbours(blocks, n, sums);
      assign(gb, flat_view(sums, wide, n));
    });
  });
  return gz ? Matrix{gz, n, false} : matrix_of(g);
}

// Returns the matrix (m, n) with its elements rounded to the precision of products.
Matrix rounded(const Matrix& matrix, int64_t m, int64_t n, DType wide, Scratch& scratch) {
  View v = flat_view(matrix.data, wide, 0);
  const int64_t size = item_size(wide);
  v.ndim = 2, v.shape[0] = m, v.shape[1] = n;
  v.stride[0] = matrix.transposed ? size : matrix.ld * size, v.stride[1] = matrix.transposed ? matrix.ld * size : size;
  const View copy = rounded(v, scratch);
  return copy.data == v.data ? matrix : Matrix{copy.data, n, false};
}

// Computes out (m, n) = a @ b. Rounds it to the dtype of out if that is half precision; otherwise adds the content of out if `add`.
void product_into(const View& out, DType wide, int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, bool add,
                  Scratch& scratch) {
  if (out.dtype == wide) return product(wide, m, n, k, a, b, out.data, add);
  char* near = static_cast<char*>(scratch.take_bytes(m * n * item_size(wide)));
  product(wide, m, n, k, a, b, near);
  assign(flat_view(out.data, out.dtype, m * n), flat_view(near, wide, m * n));
}

// Returns the number of rows that are multiplied and finished at a time.
int64_t panel_rows(int64_t m, int64_t n, int64_t size) {
  return m * n * size <= kPanelBytes ? m : std::max(kPanelRows, kPanelBytes / (n * size));
}

void run_forward(const Launch& launch) {
  const View& out = launch.out();
  if (out.size() == 0) return;
  Scratch scratch;
  const DType wide = storage_of(compute_type(out.dtype));
  const View x = rows_of(rounded(launch.in(0), scratch), wide, scratch);
  const View w = readable(rounded(launch.in(1), scratch), wide, scratch);
  const int64_t m = x.shape[0], n = w.shape[0], k = x.shape[1], size = item_size(wide);
  char* bias = nullptr;
  if (launch.inputs == 3) {
    bias = static_cast<char*>(scratch.take_bytes(n * size));
    assign(flat_view(bias, wide, n), launch.in(2));
  }
  const int64_t panel = panel_rows(m, n, size);
  char* near = out.dtype == wide ? nullptr : static_cast<char*>(scratch.take_bytes(std::min(panel, m) * n * size));
  Matrix left = matrix_of(x);
  const Matrix right = matrix_of(w).flipped();
  if (!near && product_and_finish(launch, wide, m, n, k, left, right, bias, out.data)) return;
  for (int64_t first = 0; first < m; first += panel) {
    const int64_t rows = std::min(panel, m - first);
    char* y = near ? near : out.data + first * n * size;
    left.data = x.data + first * x.stride[0];
    const char* to_come = product_to_finish(wide, rows, n, k, left, right, bias, y) ? bias : nullptr;
    if (to_come || launch.ints[0])
      kernels::visit_activation(int(launch.ints[0]), [&](auto f, auto) {
        visit_wide(wide, [&](auto zero) {
          using A = decltype(zero);
          parallel_for(rows, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
            finish_rows(f, end - begin, n, reinterpret_cast<A*>(y) + begin * n, reinterpret_cast<const A*>(to_come));
          });
        });
      });
    const int64_t done = first * n * item_size(out.dtype);
    if (near) assign(flat_view(out.data + done, out.dtype, rows * n), flat_view(near, wide, rows * n));
  }
}

void run_pullback(const Launch& launch) {
  Scratch scratch;
  const View &gx = launch.out(0), &gw = launch.out(1);
  if (gx.size() + gw.size() + launch.out(2).size() == 0) return;
  const DType wide = storage_of(compute_type(launch.in(0).dtype));
  const View g = dense_rows(launch.in(0), wide, scratch);
  const View y = launch.ints[0] ? dense_rows(launch.in(3), wide, scratch) : g;
  const int64_t m = g.shape[0], n = g.shape[1], k = launch.in(2).shape[1];
  const Matrix gz = rounded(pull_activation(launch, g, y, wide, scratch), m, n, wide, scratch);
  if (gw.data && gw.size())
    product_into(gw, wide, n, k, m, gz.flipped(), matrix_of(rows_of(rounded(launch.in(1), scratch), wide, scratch)),
                 kernels::adds_to(launch, 1), scratch);
  if (gx.data && gx.size())
    product_into(gx, wide, m, k, n, gz, matrix_of(readable(rounded(launch.in(2), scratch), wide, scratch)),
                 kernels::adds_to(launch, 0), scratch);
}

// Replaces the `fmas` that the formula counts for the products by the work that the kernels really do.
void replace_products(Counts& work, int64_t fmas, const Counts& products) { work.fmas -= fmas, work.add(products); }

void forward_work(const Launch& launch, Counts& work) {
  const DType dtype = launch.out().dtype, wide = storage_of(compute_type(dtype));
  const View x = rows_laid_out(launch.in(0), wide), w = laid_out(launch.in(1), wide);
  const int64_t m = x.shape[0], n = w.shape[0], k = x.shape[1];
  const Matrix left = matrix_of(x), right = matrix_of(w).flipped();
  const bool bias = launch.inputs == 3;
  Counts products;
  const auto large = [&](auto zero) { return large_product_work<decltype(zero)>(m, n, k, bias, products); };
  if (dtype != wide || !(wide == DType::f32 ? large(float()) : large(double()))) {
    const int64_t panel = panel_rows(m, n, item_size(wide));
    products.add(product_work(wide, panel, n, k, left, right, bias), m / panel);
    products.add(product_work(wide, m % panel, n, k, left, right, bias));
  }
  if (bias) work.adds -= m * n;  // product_work already counts them
  replace_products(work, m * n * k, products);
}

void pullback_work(const Launch& launch, Counts& work) {
  const DType wide = storage_of(compute_type(launch.in(0).dtype));
  const View g = rows_laid_out(launch.in(0), wide), x = rows_laid_out(launch.in(1), wide), w = laid_out(launch.in(2), wide);
  const int64_t m = g.shape[0], n = g.shape[1], k = w.shape[1], size = item_size(wide);
  if (launch.out(2).data) {
    work.adds -= std::max<int64_t>(0, m * n - n);  // the additions of the formula
    visit_wide(wide, [&](auto zero) { work.adds += additions_of_sums<decltype(zero)>(m, n); });
  }
  Matrix gz = matrix_of(g);
  if (launch.ints[0] || (n > 1 && g.stride[1] != size)) gz = {nullptr, n, false};
  if (launch.out(1).data) replace_products(work, m * n * k, product_work(wide, n, k, m, gz.flipped(), matrix_of(x)));
  if (launch.out(0).data) replace_products(work, m * n * k, product_work(wide, m, k, n, gz, matrix_of(w)));
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void executed_linear(const Launch& launch, Counts& work) {
  if (launch.out().size()) cpu::forward_work(launch, work);
}
void executed_linear_pullback(const Launch& launch, Counts& work) {
  if (launch.in().size()) cpu::pullback_work(launch, work);
}

void linear(const Launch& launch) {
  const View& x = launch.in(0);
  PB_CHECK_EQ(x.shape[x.ndim - 1], launch.in(1).shape[1]);
  cpu::run_forward(launch);
}
void linear_pullback(const Launch& launch) { cpu::run_pullback(launch); }

}  // namespace pb::kernels
