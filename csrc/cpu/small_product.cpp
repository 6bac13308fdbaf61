// A tile of the result stays in registers while the rows of b are accumulated into it, one after another. Only columns of b that
// cannot be loaded as vectors are packed. Every element is summed in the order of families/order.h.
#include "cpu/small_product.h"

#include <algorithm>

#include "cpu/panel.h"
#include "cpu/pool.h"
#include "cpu/strips.h"
#include "families/matmul.h"

namespace pb::cpu {
namespace {

constexpr int64_t kGrain = 500000;  // the fewest multiply-adds per thread
constexpr int64_t kBlock = 64;      // rows per block of a shared product
constexpr int64_t kFewRows = 2;     // up to this many rows, one block of k has wider panels, and several run side by side, to
constexpr int kWideVectors = 4;     // hide the latency of additions; such panels have kWideVectors vectors

// Computes a tile of few rows, whose blocks run side by side.
template <class T, int kRows, int kVectors> void run_flat_tile(const PanelTile<T>& t) {
  constexpr int kBlocks = kTileDepth / kOrderBlock;
  Vector<T> sum[kBlocks][kRows][kVectors] = {};
  const int64_t blocks = kernels::order_blocks(t.k), last = t.k - (blocks - 1) * kOrderBlock;
  // Steps [begin, end) of the first kCount blocks.
  const auto step = [&](auto count, int64_t begin, int64_t end) __attribute__((always_inline)) {
    const T *a = t.a + begin * t.across, *b = t.b + begin * t.ldb;
    for (int64_t l = begin; l < end; ++l, a += t.across, b += t.ldb)
#pragma GCC unroll 4
      for (int block = 0; block < count; ++block)
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) {
          const Vector<T> left = broadcast<T>(a[r * t.down + block * kOrderBlock * t.across]);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) {
            const Vector<T> row = load_vector(b + block * kOrderBlock * t.ldb + v * kWidth<T>);
            sum[block][r][v] = multiply_add<T>(left, row, sum[block][r][v]);
          }
        }
  };
  const auto add = [&](int to, int from) __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[to][r][v] += sum[from][r][v];
  };
  static_assert(kBlocks == 4);
  if (blocks == 1) {
    step(std::integral_constant<int, 1>(), 0, last);
  } else if (blocks == 2) {
    step(std::integral_constant<int, 2>(), 0, last), step(std::integral_constant<int, 1>(), last, kOrderBlock);
    add(0, 1);
  } else if (blocks == 3) {
    step(std::integral_constant<int, 3>(), 0, last), step(std::integral_constant<int, 2>(), last, kOrderBlock);
    add(0, 1), add(0, 2);
  } else {
    step(std::integral_constant<int, 4>(), 0, last), step(std::integral_constant<int, 3>(), last, kOrderBlock);
    add(0, 1), add(2, 3), add(0, 2);
  }
  write_tile(sum[0], t.out, t.ldc, kRows, t.columns, t.bias, t.add);
}

template <class T, int kVectors> void run_panel(const PanelTile<T>& t, int64_t rows, bool few) {
  if (!few || t.k <= kOrderBlock) return run_rows<T, kVectors>(t, rows);
  if constexpr (kVectors < kWideVectors) rows == 2 ? run_flat_tile<T, 2, kVectors>(t) : run_flat_tile<T, 1, kVectors>(t);
}

// Packs the columns of b from `first` on into consecutive vectors, with zeros for columns beyond the last.
template <class T, int kVectors> void pack(int64_t n, int64_t k, const Matrix& b, int64_t first, T* to) {
  constexpr int64_t kPanel = kVectors * kWidth<T>;
  const T* from = reinterpret_cast<const T*>(b.data) + first * (b.transposed ? b.ld : 1);
  for (int v = 0; v < kVectors; ++v, from += kWidth<T> * (b.transposed ? b.ld : 1), to += kWidth<T>) {
    const int64_t columns = std::clamp<int64_t>(n - first - v * kWidth<T>, 0, kWidth<T>);
    if (b.transposed) turn_strip(columns, k, from, b.ld, to, kPanel);
    else
      for (int64_t l = 0; l < k; ++l) store_vector(to + l * kPanel, load_part(from + l * b.ld, columns));
  }
}

// Computes panels of columns times blocks of rows, in parallel. The bits do not depend on the distribution over threads.
template <class T, int kVectors>
void run_panels(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out, int64_t ldc,
                bool add) {
  constexpr int64_t kPanel = kVectors * kWidth<T>;
  const bool shared = m * n * k >= kSharedProduct;
  const int64_t height = shared ? kBlock : m, blocks = (m + height - 1) / height, tasks = (n + kPanel - 1) / kPanel * blocks;
  const int64_t down = a.transposed ? 1 : a.ld, across = a.transposed ? a.ld : 1;
  const int64_t grain = shared ? kGrain / (std::min(m, kBlock) * k * kPanel) + 1 : tasks;
  parallel_for(tasks, grain, [&](int64_t begin, int64_t end) {
    Scratch scratch;
    T* packed = b.transposed || n % kPanel ? scratch.take<T>(k * kPanel) : nullptr;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t j = task / blocks * kPanel, i = task % blocks * height;
      const bool direct = !b.transposed && n - j >= kPanel;
      if (!direct && (i == 0 || task == begin)) pack<T, kVectors>(n, k, b, j, packed);
      const int64_t columns = std::min(kPanel, n - j);
      const T* panel = direct ? reinterpret_cast<const T*>(b.data) + j : packed;
      const PanelTile<T> tile{k,
                              reinterpret_cast<const T*>(a.data) + i * down,
                              down,
                              across,
                              panel,
                              direct ? b.ld : kPanel,
                              bias ? bias + j : nullptr,
                              out + i * ldc + j,
                              ldc,
                              columns,
                              add};
      if (columns > kWidth<T>) run_panel<T, kVectors>(tile, std::min(height, m - i), m <= kFewRows);
      else run_panel<T, 1>(tile, std::min(height, m - i), m <= kFewRows);
    }
  });
}

// True if panels have kWideVectors vectors.
template <class T> bool is_wide(int64_t m, int64_t n, int64_t k) {
  return m <= kFewRows && k <= kOrderBlock && n > 2 * kWidth<T>;
}

template <class T>
void run(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out, int64_t ldc, bool add) {
  if (is_wide<T>(m, n, k)) run_panels<T, kWideVectors>(m, n, k, a, b, bias, out, ldc, add);
  else if (n > kWidth<T>) run_panels<T, 2>(m, n, k, a, b, bias, out, ldc, add);
  else run_panels<T, 1>(m, n, k, a, b, bias, out, ldc, add);
}

// Writes out (m, 2) from its two columns, and adds the bias if there is one. Otherwise it adds -0, which changes nothing.
template <class T> void write_pairs(int64_t m, const T* columns, const T* bias, T* out) {
  const T first = bias ? bias[0] : T(-0.0), second = bias ? bias[1] : T(-0.0);
  for (int64_t i = 0; i < m; ++i) out[2 * i] = columns[i] + first, out[2 * i + 1] = columns[m + i] + second;
}

// Computes out^T = b^T a^T, and transposes it into out.
template <class T>
void run_turned(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out, bool add) {
  Scratch scratch;
  T* columns = scratch.take<T>(m * n);
  run<T>(n, m, k, b.flipped(), a.flipped(), nullptr, columns, m, false);
  if (n == 2 && !add) return write_pairs(m, columns, bias, out);
  alignas(kVectorBytes) T rows[kWidth<T> * kWidth<T>];
  for (int64_t j = 0; j < n; j += kWidth<T>) {
    const int64_t width = std::min<int64_t>(kWidth<T>, n - j);
    const Vector<T> biases = bias ? load_part(bias + j, width) : Vector<T>{};
    for (int64_t i = 0; i < m; i += kWidth<T>) {
      const int64_t count = std::min<int64_t>(kWidth<T>, m - i);
      turn_strip(width, count, columns + j * m + i, m, rows, kWidth<T>);
      for (int64_t r = 0; r < count; ++r) {
        T* to = out + (i + r) * n + j;
        Vector<T> y = load_vector(rows + r * kWidth<T>);
        if (add) y = load_part(to, width) + y;
        store_part(to, bias ? y + biases : y, width);
      }
    }
  }
}

// Returns roughly the number of vectors that are multiplied or packed.
template <class T> int64_t effort(int64_t m, int64_t n, int64_t k, const Matrix& b) {
  const int64_t vectors = (n + kWidth<T> - 1) / kWidth<T>;
  return m * k * vectors + (b.transposed || n % kWidth<T> ? 4 * k * vectors : 0);
}

enum class Way { none, straight, turned };
template <class T> Way way_for(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b) {
  if (k == 0 || k > kTileDepth || suits_blas(m, n, k, a, b)) return Way::none;
  return effort<T>(n, m, k, a.flipped()) + m * n / 2 < effort<T>(m, n, k, b) ? Way::turned : Way::straight;
}

// Returns the number of columns that tiles compute. A panel of at most one vector is computed as such.
template <class T> int64_t padded_columns(int64_t m, int64_t n, int64_t k) {
  if (!is_wide<T>(m, n, k)) return whole<T>(n);
  constexpr int64_t kPanel = kWideVectors * kWidth<T>;
  const int64_t rest = n % kPanel;
  return n - rest + (rest > kWidth<T> ? kPanel : whole<T>(rest));
}

// Returns the work of tiles, which includes the padding of vectors and the additions of blocks.
template <class T> Counts work_of_tiles(int64_t m, int64_t n, int64_t k) {
  Counts work;
  const int64_t results = m * padded_columns<T>(m, n, k);
  work.fmas = results * k;
  work.adds = results * (kernels::order_blocks(k) - 1);
  return work;
}

}  // namespace

bool suits_blas(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b) {
  if (kernels::everywhere() || k == 0) return false;
  return m == 1 || n == 1 || (k > 32 && ((m <= 8 && b.transposed) || (n <= 8 && !a.transposed))) ||
         (k > 64 && n <= 12 && !a.transposed && b.transposed);
}

template <class T>
bool small_product(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out, bool add) {
  const Way way = way_for<T>(m, n, k, a, b);
  if (way == Way::turned) run_turned(m, n, k, a, b, bias, out, add);
  else if (way == Way::straight) run(m, n, k, a, b, bias, out, n, add);
  return way != Way::none;
}
template bool small_product(int64_t, int64_t, int64_t, const Matrix&, const Matrix&, const float*, float*, bool);
template bool small_product(int64_t, int64_t, int64_t, const Matrix&, const Matrix&, const double*, double*, bool);

template <class T>
bool small_product_work(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, bool bias, bool add, Counts& work) {
  const Way way = way_for<T>(m, n, k, a, b);
  if (way == Way::none) return false;
  work = way == Way::turned ? work_of_tiles<T>(n, m, k) : work_of_tiles<T>(m, n, k);
  if (way == Way::turned && n == 2 && !add) work.adds += 2 * m;  // write_pairs adds -0 if there is no bias
  else work.adds += (bias + add) * m * whole<T>(n);
  return true;
}
template bool small_product_work<float>(int64_t, int64_t, int64_t, const Matrix&, const Matrix&, bool, bool, Counts&);
template bool small_product_work<double>(int64_t, int64_t, int64_t, const Matrix&, const Matrix&, bool, bool, Counts&);

template <class T> void tile_product(int64_t m, int64_t n, int64_t k, const T* a, const T* b, T* out) {
  const Matrix left{reinterpret_cast<const char*>(a), k, false}, right{reinterpret_cast<const char*>(b), n, false};
  run_panels<T, 2>(m, n, k, left, right, nullptr, out, n, false);
}
template void tile_product(int64_t, int64_t, int64_t, const float*, const float*, float*);
template void tile_product(int64_t, int64_t, int64_t, const double*, const double*, double*);

template <class T> Counts tile_product_work(int64_t m, int64_t n, int64_t k) {
  Counts work;
  work.fmas = m * n * k, work.adds = m * n * (kernels::order_blocks(k) - 1);
  return work;
}
template Counts tile_product_work<float>(int64_t, int64_t, int64_t);
template Counts tile_product_work<double>(int64_t, int64_t, int64_t);

}  // namespace pb::cpu
