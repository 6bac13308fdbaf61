// Products of a few rows with factors in panels, for attention. Sums are in the order of families/order.h.
#pragma once
#include <algorithm>
#include <utility>

#include "cpu/panel.h"
#include "cpu/tile.h"
#include "families/matmul.h"

namespace pb::cpu {

using kernels::Precision;

// A factor b of a product in panels of two vectors. Panel p begins at data + p * step, and its rows are ld elements apart.
template <class C> struct Panels {
  const C* data;
  int64_t ld, step;
};
// Rows of which whole vectors can be read.
template <class C> struct Block {
  const C* data;
  int64_t ld;
  Panels<C> panels() const { return {data, ld, 2 * kWidth<C>}; }
};

// Computes out (m, n) = a (m, k) @ b (k, n). Writes whole vectors.
template <class C> void multiply(int64_t m, int64_t n, int64_t k, const C* a, int64_t down, Panels<C> b, C* out, int64_t ldc) {
  constexpr int64_t kPanel = 2 * kWidth<C>;
  for (int64_t j = 0; j < n; j += kPanel) {
    const int64_t columns = std::min(kPanel, whole<C>(n - j));
    const PanelTile<C> tile{k, a, down, 1, b.data + j / kPanel * b.step, b.ld, nullptr, out + j, ldc, columns, false};
    if (columns > kWidth<C>) run_rows<C, 2>(tile, m);
    else run_rows<C, 1>(tile, m);
  }
}

// Adds the product of a (k, kRows) transposed and b (k, kVectors vectors) to out, one step of k after another.
template <class C, int kRows, int kVectors>
void accumulate_tile(int64_t k, const C* a, int64_t lda, const C* b, int64_t ldb, C* out, int64_t ldc) {
  Vector<C> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = load_vector(out + r * ldc + v * kWidth<C>);
  for (int64_t l = 0; l < k; ++l, a += lda, b += ldb) {
    Vector<C> row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = load_vector(b + v * kWidth<C>);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vector<C> left = broadcast<C>(a[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add<C>(left, row[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store_vector(out + r * ldc + v * kWidth<C>, sum[r][v]);
}
template <class C, int kVectors, size_t... kRows>
void accumulate_rows(int64_t m, int64_t k, const C* a, int64_t lda, const C* b, int64_t ldb, C* out, int64_t ldc,
                     std::index_sequence<kRows...>) {
  constexpr int64_t kMost = sizeof...(kRows);
  constexpr void (*kTiles[])(int64_t, const C*, int64_t, const C*, int64_t, C*,
                             int64_t) = {accumulate_tile<C, int(kRows) + 1, kVectors>...};
  for (int64_t r = 0; r < m; r += kMost) kTiles[std::min(kMost, m - r) - 1](k, a + r, lda, b, ldb, out + r * ldc, ldc);
}
// Continues the chains of a product: out (m, n) += a (k, m) transposed @ b (k, n).
template <class C> void accumulate(int64_t m, int64_t n, int64_t k, const C* a, int64_t lda, Block<C> b, C* out, int64_t ldc) {
  for (int64_t j = 0; j < n; j += 2 * kWidth<C>) {
    if (n - j > kWidth<C>)
      accumulate_rows<C, 2>(m, k, a, lda, b.data + j, b.ld, out + j, ldc, std::make_index_sequence<kTileSums / 2>());
    else accumulate_rows<C, 1>(m, k, a, lda, b.data + j, b.ld, out + j, ldc, std::make_index_sequence<kTileSums>());
  }
}

// True if factors of products are rounded to the precision (kernels::Precision).
template <class C> bool rounds(Precision precision) { return std::is_same_v<C, float> && precision > Precision::tf32; }

// Rounds numbers to the precision of products.
template <class C> void round_to(Precision precision, int64_t n, C* x) {
  if (!rounds<C>(precision)) return;
  if (precision == Precision::bf16)
    for (int64_t i = 0; i < n; ++i) x[i] = C(bfloat16(float(x[i])));
  else
    for (int64_t i = 0; i < n; ++i) x[i] = C(float16(float(x[i])));
}

}  // namespace pb::cpu
