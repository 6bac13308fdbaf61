// Batched products. Floats are multiplied by kernels of this backend and by BLAS, mostly without copies of the operands; integers
// by a plain loop.
#include "cpu/matmul.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/copy.h"
#include "cpu/nontemporal.h"
#include "cpu/pool.h"
#include "cpu/registers.h"
#include "families/executed.h"
#include "families/matmul.h"
#include "launch/check.h"

namespace pb::cpu {
namespace {

constexpr int64_t kGrain = 500000;          // the fewest multiply-adds per thread, if there are many small products: about 5 us
constexpr int64_t kEach = 2000;             // the cost of starting a product, in multiply-adds: about 20 ns
constexpr int64_t kOuterGrain = 32 * 1024;  // the fewest elements of outer products per thread

// Returns the view of the batch axes, which are all but the last two.
View batch_of(const View& v) {
  View batch = v;
  batch.ndim = v.ndim - 2;
  return batch;
}

// True if a copy of v is stored column by column, because the columns of v are closer to contiguous than its rows, and differ.
bool by_columns(const View& v) {
  const int64_t down = std::abs(v.stride[v.ndim - 2]), across = std::abs(v.stride[v.ndim - 1]);
  return 0 < down && down < across;
}

void swap_last_axes(View& v) {
  const int row = v.ndim - 2, column = v.ndim - 1;
  std::swap(v.shape[row], v.shape[column]), std::swap(v.stride[row], v.stride[column]);
}

// Returns the layout of a copy of v that BLAS can read. Broadcast batch axes have length one in it, so that each matrix is copied
// once.
View copy_of(const View& v, DType wide) {
  View copy = v;
  copy.dtype = wide, copy.data = nullptr;
  if (by_columns(v)) swap_last_axes(copy);
  int64_t stride = item_size(wide);
  for (int d = v.ndim - 1; d >= 0; --d) {
    if (d < v.ndim - 2 && v.stride[d] == 0) copy.shape[d] = std::min<int64_t>(v.shape[d], 1);
    copy.stride[d] = stride;
    stride *= copy.shape[d];
  }
  if (by_columns(v)) swap_last_axes(copy);
  return copy;
}
View copy_readable(const View& v, DType wide, Scratch& scratch) {
  View copy = copy_of(v, wide), from = v;
  copy.data = static_cast<char*>(scratch.take_bytes(copy.bytes()));
  std::memcpy(from.shape, copy.shape, sizeof from.shape);
  View to = copy;
  if (by_columns(v)) swap_last_axes(to), swap_last_axes(from);
  assign(to, from);
  return copy;
}

struct Batched {
  DType dtype;
  int64_t m, n, k;
  Matrix a, b;
  View steps[3];  // the batch axes of out, a and b, collapsed
  bool add;       // add the products to the content of out
};

// Merges the batch into one product if all matrices share b, and the rows of the matrices a are evenly spaced through the batch.
void merge_batch(Batched& p) {
  const int64_t size = item_size(p.dtype);
  if (p.steps[0].ndim != 1 || p.steps[2].stride[0] != 0 || p.a.transposed) return;
  const int64_t step = p.steps[1].stride[0];
  if (p.m == 1 && step % size == 0 && step >= p.k * size) p.a.ld = step / size;
  else if (step != p.m * p.a.ld * size) return;
  p.m *= p.steps[0].shape[0];
  for (View& v : p.steps) v.ndim = 0;
}

// Returns the factors of product i of the batch.
std::pair<Matrix, Matrix> factors_of(const Batched& p, int64_t i) {
  Matrix a = p.a, b = p.b;
  for (int d = p.steps[0].ndim - 1; d >= 0; --d) {
    const int64_t at = d ? i % p.steps[0].shape[d] : i;
    if (d) i /= p.steps[0].shape[d];
    a.data += at * p.steps[1].stride[d], b.data += at * p.steps[2].stride[d];
  }
  return {a, b};
}

void run_batch(const Batched& p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const auto [a, b] = factors_of(p, i);
    product(p.dtype, p.m, p.n, p.k, a, b, p.steps[0].data + i * p.m * p.n * item_size(p.dtype), p.add);
  }
}

// Computes rows [begin, end), counted through the batch, of outer products (k = 1). Each element of the result is one
// multiply-add, so writing the result is nearly all of the work.
template <class T> void outer_rows(const Batched& p, bool nontemporal, int64_t begin, int64_t end) {
  constexpr int64_t kPiece = 1024;
  for (int64_t r = begin; r < end; ++r) {
    const auto [a, b] = factors_of(p, r / p.m);
    const T x = reinterpret_cast<const T*>(a.data)[r % p.m * (a.transposed ? 1 : a.ld)];
    const T* row = reinterpret_cast<const T*>(b.data);
    T* out = reinterpret_cast<T*>(p.steps[0].data) + r * p.n;
    if (!nontemporal) {
      for (int64_t j = 0; j < p.n; ++j) out[j] = multiply_add_number(x, row[j], T(0));
      continue;
    }
    alignas(64) T piece[kPiece];
    for (int64_t first = 0; first < p.n; first += kPiece) {
      const int64_t n = std::min(kPiece, p.n - first);
      for (int64_t j = 0; j < n; ++j) piece[j] = multiply_add_number(x, row[first + j], T(0));
      store_nontemporal(reinterpret_cast<char*>(out + first), reinterpret_cast<const char*>(piece), n * int64_t(sizeof(T)));
    }
  }
  if (nontemporal) nontemporal_fence();
}

// Returns the products of a launch. BLAS must be able to read its factors.
Batched batched(const View& out, const View& a, const View& b, bool add) {
  Batched p{a.dtype, a.shape[a.ndim - 2], b.shape[b.ndim - 1], a.shape[a.ndim - 1], {}, {}, {}, add};
  as_matrix(a, p.a), as_matrix(b, p.b);
  const View batch = batch_of(out);
  p.steps[0] = batch, p.steps[1] = batch_of(a), p.steps[2] = batch_of(b);
  for (View* v : {&p.steps[1], &p.steps[2]}) broadcast_to(*v, batch.ndim, batch.shape);
  collapse(p.steps, 3);
  merge_batch(p);
  return p;
}

// True if the products are outer products. Narrow ones do not count, because other kernels are faster for them.
bool is_outer(const Batched& p) { return p.k == 1 && p.n >= 16 && !p.add && !(p.b.transposed && p.b.ld != 1); }

bool run_outer(const Batched& p) {
  if (!is_outer(p)) return false;
  const int64_t rows = p.steps[0].size() * p.m;
  const bool nontemporal =
      rows * p.n * item_size(p.dtype) >= kNontemporalAfterExp;  // the old content of `out` may still be in the caches
  parallel_for(rows, std::max<int64_t>(1, kOuterGrain / p.n), [&](int64_t begin, int64_t end) {
    if (p.dtype == DType::f32) outer_rows<float>(p, nontemporal, begin, end);
    else outer_rows<double>(p, nontemporal, begin, end);
  });
  return true;
}

void matmul_float(const View& out, const View& left, const View& right, bool add) {
  Scratch scratch;
  const DType wide = storage_of(compute_type(out.dtype));
  const View a = readable(rounded(left, scratch), wide, scratch), b = readable(rounded(right, scratch), wide, scratch);
  Batched p = batched(out, a, b, add);
  char* const target = is_half(out.dtype) ? reinterpret_cast<char*>(scratch.take<float>(out.size())) : out.data;
  p.steps[0].data = target;
  const int64_t count = p.steps[0].size(), work = p.m * p.n * p.k;
  const bool done = run_outer(p);
  if (!done && (work >= kSharedProduct || count == 1)) run_batch(p, 0, count);
  else if (!done) parallel_for(count, kGrain / (work + kEach) + 1, [&](int64_t i, int64_t j) { run_batch(p, i, j); });
  if (!is_half(out.dtype)) return;
  assign(flat_view(out.data, out.dtype, out.size()), flat_view(target, wide, out.size()));
}

// Adds a * b to a row of out. The arithmetic is unsigned, so that it wraps as in NumPy.
template <class T> void add_row(int64_t n, T a, const T* __restrict b, T* __restrict out) {
  if constexpr (std::is_same_v<T, bool>) {
    for (int64_t j = 0; j < n; ++j) out[j] |= a & b[j];
  } else {
    using U = std::conditional_t<sizeof(T) < 4, uint32_t, std::make_unsigned_t<T>>;
    for (int64_t j = 0; j < n; ++j) out[j] = T(U(out[j]) + U(a) * U(b[j]));
  }
}

template <class T> void matmul_rows(const View& out, const View& a, const View& b, int64_t begin, int64_t end) {
  const int row = out.ndim - 2, column = row + 1;
  const int64_t m = out.shape[row], n = out.shape[column], k = a.shape[column];
  for (int64_t i = begin; i < end; ++i) {
    const char* left = a.data + i % m * a.stride[row];
    const char* right = b.data;
    int64_t rest = i / m;
    for (int d = row - 1; d >= 0; --d) {
      const int64_t at = rest % out.shape[d];
      rest /= out.shape[d];
      left += at * a.stride[d], right += at * b.stride[d];
    }
    T* target = out.as<T>() + i * n;
    std::fill_n(target, n, T(0));
    for (int64_t l = 0; l < k; ++l)
      add_row(n, *reinterpret_cast<const T*>(left + l * a.stride[column]),
              reinterpret_cast<const T*>(right + l * b.stride[row]), target);
  }
}

// Returns v, broadcast to the batch axes of out.
View spread(View v, const View& out) {
  int64_t shape[kMaxDims];
  std::memcpy(shape, out.shape, sizeof shape);
  shape[out.ndim - 2] = v.shape[v.ndim - 2], shape[out.ndim - 1] = v.shape[v.ndim - 1];
  const int64_t row = v.stride[v.ndim - 2], column = v.stride[v.ndim - 1];
  broadcast_to(v, out.ndim, shape);
  v.stride[out.ndim - 2] = row, v.stride[out.ndim - 1] = column;
  return v;
}

void matmul_integer(const View& out, const View& left, View right) {
  Scratch scratch;
  const int64_t size = item_size(out.dtype);
  if (right.stride[right.ndim - 1] != size && right.shape[right.ndim - 1] > 1) {
    View copy = right;
    copy.data = static_cast<char*>(scratch.take_bytes(right.bytes()));
    int64_t stride = size;
    for (int d = right.ndim - 1; d >= 0; --d) copy.stride[d] = stride, stride *= right.shape[d];
    assign(copy, right);
    right = copy;
  }
  const View a = spread(left, out), b = spread(right, out);
  const int64_t n = out.shape[out.ndim - 1], k = a.shape[out.ndim - 1], rows = n ? out.size() / n : 0;
  const int64_t work = std::max<int64_t>(1, n * k);
  parallel_for(rows, std::max<int64_t>(1, kGrain / 8 / work), [&](int64_t begin, int64_t end) {
    visit(out.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (std::is_integral_v<T>) matmul_rows<T>(out, a, b, begin, end);
    });
  });
}

bool is_readable(const View& v, DType wide) {
  Matrix matrix;
  return v.dtype == wide && as_matrix(v, matrix);
}

bool is_rounded(const View& v) { return v.dtype == DType::f32 && kernels::precision() > kernels::Precision::tf32; }

void make_contiguous(View& v) {
  int64_t stride = item_size(v.dtype);
  for (int d = v.ndim - 1; d >= 0; --d) v.stride[d] = stride, stride *= v.shape[d];
}

}  // namespace

bool as_matrix(const View& v, Matrix& out) {
  const int64_t size = item_size(v.dtype), rows = v.shape[v.ndim - 2], columns = v.shape[v.ndim - 1];
  const int64_t down = v.stride[v.ndim - 2], across = v.stride[v.ndim - 1];
  const auto fits = [size](int64_t count, int64_t stride, int64_t length) {
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    return count <= 1 || (stride % size == 0 && stride >= length * size && stride / size < kMost);
  };
  const bool by_rows = (columns <= 1 || across == size) && fits(rows, down, std::max<int64_t>(columns, 1));
  const bool by_columns = (rows <= 1 || down == size) && fits(columns, across, std::max<int64_t>(rows, 1));
  if (!by_rows && !by_columns) return false;
  out.data = v.data;
  out.transposed = !by_rows;
  if (by_rows) out.ld = rows <= 1 ? std::max<int64_t>(columns, 1) : down / size;
  else out.ld = columns <= 1 ? std::max<int64_t>(rows, 1) : across / size;
  return true;
}

View rounded(const View& v, Scratch& scratch) {
  if (!is_rounded(v)) return v;
  View narrow = v, copy = v;
  narrow.dtype = kernels::precision() == kernels::Precision::bf16 ? DType::bf16 : DType::f16;
  for (View* to : {&narrow, &copy}) {
    make_contiguous(*to);
    to->data = static_cast<char*>(scratch.take_bytes(to->bytes()));
  }
  if (v.size() != 0) assign(narrow, v), assign(copy, narrow);
  return copy;
}

View readable(const View& v, DType wide, Scratch& scratch) {
  return is_readable(v, wide) ? v : copy_readable(v, wide, scratch);
}

View laid_out(const View& v, DType wide) {
  View copy = v;
  if (is_rounded(v)) make_contiguous(copy);
  return is_readable(copy, wide) ? copy : copy_of(copy, wide);
}

}  // namespace pb::cpu

namespace pb::kernels {

void matmul(const Launch& launch) {
  const View &out = launch.out(), &a = launch.in(0), &b = launch.in(1);
  PB_CHECK_EQ(a.shape[a.ndim - 1], b.shape[b.ndim - 2]);
  if (out.size() == 0) return;
  if (is_float(out.dtype)) cpu::matmul_float(out, a, b, kernels::adds_to(launch, 0));
  else cpu::matmul_integer(out, a, b);
}

void executed_matmul(const Launch& launch, Counts& work) {
  const View& out = launch.out();
  if (out.size() == 0) return;
  const DType wide = storage_of(compute_type(out.dtype));
  const cpu::Batched p = cpu::batched(out, cpu::laid_out(launch.in(0), wide), cpu::laid_out(launch.in(1), wide), false);
  const int64_t count = p.steps[0].size();
  work = {};
  if (cpu::is_outer(p)) work.fmas = count * p.m * p.n;
  else work.add(cpu::product_work(wide, p.m, p.n, p.k, p.a, p.b), count);
}

}  // namespace pb::kernels
