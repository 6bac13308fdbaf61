// The sums of a tile of a product, which are in vector registers: how the blocks of the contraction are combined (families/order.h),
// and how the result is written to memory.
#pragma once
#include <algorithm>

#include "cpu/vector.h"
#include "families/order.h"

namespace pb::cpu {

using kernels::kOrderBlock;

// The largest k of a tile: four blocks. Longer contractions are cut into slices (cpu/product.cpp), so that packed factors fit the
// caches.
constexpr int64_t kTileDepth = 4 * kOrderBlock;
constexpr int kTileLevels = 2;  // of the finished blocks of such a tile, which are three
static_assert(kTileDepth / kOrderBlock <= 1 << kTileLevels);
constexpr int kAllLevels = 24;  // for a contraction of up to 2^32 terms

// The most vectors of sums in a tile. With 16 registers, four are left for a row of b and an element of a.
constexpr int kTileSums = kRegisters == 16 ? 12 : 16;

// The sums of the blocks before the current one, as a binary counter: level p holds the sum of 2^p blocks if bit p of their number
// is set. They are in memory, because the registers are full.
template <class T, int kRows, int kVectors, int kLevels = kTileLevels> class FinishedBlocks {
  using Sums = Vector<T>[kRows][kVectors];

 public:
  // Takes the sums of the current block, and sets them to 0.
  inline __attribute__((always_inline)) void take(Sums& sum) {
    int64_t rest = blocks_++;
    int level = 0;
    for (; rest & 1; rest >>= 1) add(level++, sum);
    each([&](int r, int v) __attribute__((always_inline)) { sums_[level][r][v] = sum[r][v], sum[r][v] = Vector<T>{}; });
  }
  // Adds the sums of all blocks to those of the last one.
  inline __attribute__((always_inline)) void finish(Sums& sum) const {
    int level = 0;
    for (int64_t rest = blocks_; rest; rest >>= 1, ++level)
      if (rest & 1) add(level, sum);
  }

 private:
  template <class F> static inline __attribute__((always_inline)) void each(const F& f) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) f(r, v);
  }
  inline __attribute__((always_inline)) void add(int level, Sums& sum) const {
    each([&](int r, int v) __attribute__((always_inline)) { sum[r][v] = sums_[level][r][v] + sum[r][v]; });
  }

  Sums sums_[kLevels];
  int64_t blocks_ = 0;
};

// Writes the first `rows` rows and `columns` columns to out, whose rows are `ldc` elements apart. Adds the content of out if `add`,
// and the bias of each column unless `bias` is null.
template <class T, int kRows, int kVectors>
inline __attribute__((always_inline)) void write_tile(Vector<T> (&sum)[kRows][kVectors], T* out, int64_t ldc, int64_t rows,
                                                      int64_t columns, const T* bias, bool add) {
  if (rows == kRows && columns >= kVectors * kWidth<T> && !bias && !add) {  // most tiles: decided once, not for each vector
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store_vector(out + r * ldc + v * kWidth<T>, sum[r][v]);
    return;
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t first = v * kWidth<T>, left = std::min<int64_t>(columns - first, kWidth<T>);
    if (left <= 0) return;
    const Vector<T> biases = bias ? load_part(bias + first, left) : Vector<T>{};
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      T* to = out + r * ldc + first;
      Vector<T> y = sum[r][v];
      if (add) y = load_part(to, left) + y;
      if (bias) y += biases;
      if (left == kWidth<T>) store_vector(to, y);
      else store_part(to, y, left);
    }
  }
}

}  // namespace pb::cpu
