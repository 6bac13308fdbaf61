// Tiles of a product whose rows are read where they are, and whose columns are a panel of a few vectors.
#pragma once
#include <algorithm>
#include <utility>

#include "cpu/tile.h"

namespace pb::cpu {

// The most vectors of sums in a tile. With 16 registers, four are left for a row of b and an element of a.
constexpr int kTileSums = kRegisters == 16 ? 12 : 16;

// The rows of `a` and the columns of `b` that a tile reads. The rows of b are contiguous.
template <class T> struct PanelTile {
  int64_t k;
  const T* a;
  int64_t down, across;
  const T* b;
  int64_t ldb;
  const T* bias;
  T* out;
  int64_t ldc;
  int64_t columns;  // columns of the result; the vectors of b may have more
  bool add;         // add to the content of out
};

template <class T, int kRows, int kVectors, int kLevels = kTileLevels>
inline __attribute__((always_inline)) void run_tile(const PanelTile<T>& t) {
  constexpr int kGroups = (kRows + 3) / 4;
  Vector<T> sum[kRows][kVectors] = {};
  FinishedBlocks<T, kRows, kVectors, kLevels> finished;
  const T *a[kGroups], *b = t.b;
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
    a[g] = t.a + 4 * g * t.down;
    asm("" : "+r"(a[g]));  // one pointer per four rows, because gcc runs out of registers with an offset per row
  }
  for (int64_t rest = t.k;; rest -= kOrderBlock) {
    for (int64_t l = std::min(rest, kOrderBlock); l; --l, b += t.ldb) {
      Vector<T> row[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) row[v] = load_vector(b + v * kWidth<T>);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vector<T> left = broadcast<T>(a[r / 4][r % 4 * t.down]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add<T>(left, row[v], sum[r][v]);
      }
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) a[g] += t.across;
    }
    if (rest <= kOrderBlock) break;
    finished.take(sum);
  }
  finished.finish(sum);
  write_tile(sum, t.out, t.ldc, kRows, t.columns, t.bias, t.add);
}

template <class T, int kRows, int kVectors, int kLevels> void run_last_tile(PanelTile<T> t) {
  run_tile<T, kRows, kVectors, kLevels>(t);
}

// Computes all rows, in tiles that are as high as registers allow. The last two tiles have about the same height, because a low
// tile would wait for the latency of its additions.
template <class T, int kVectors, int kLevels, size_t... kRows>
void run_rows(PanelTile<T> t, int64_t rows, std::index_sequence<kRows...>) {
  constexpr int64_t kMost = sizeof...(kRows);
  constexpr void (*kTiles[])(PanelTile<T>) = {run_last_tile<T, int(kRows) + 1, kVectors, kLevels>...};
  for (; rows >= 2 * kMost || rows == kMost; rows -= kMost) {
    run_tile<T, kMost, kVectors, kLevels>(t);
    t.a += kMost * t.down, t.out += kMost * t.ldc;
  }
  if (rows > kMost) {
    const int64_t half = rows / 2;
    kTiles[half - 1](t);
    t.a += half * t.down, t.out += half * t.ldc, rows -= half;
  }
  if (rows) kTiles[rows - 1](t);
}

template <class T, int kVectors, int kLevels = kTileLevels> void run_rows(const PanelTile<T>& t, int64_t rows) {
  run_rows<T, kVectors, kLevels>(t, rows, std::make_index_sequence<kTileSums / kVectors>());
}

}  // namespace pb::cpu
