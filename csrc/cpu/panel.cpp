// The tiles of panels. There are so many of them that only this file compiles them, for all kernels that multiply.
#include "cpu/panel.h"

#include <algorithm>
#include <utility>

#include "cpu/tile.h"

namespace pb::cpu {
namespace {

template <class T, int kRows, int kVectors> inline __attribute__((always_inline)) void run_tile(const PanelTile<T>& t) {
  constexpr int kGroups = (kRows + 3) / 4;
  Vector<T> sum[kRows][kVectors] = {};
  FinishedBlocks<T, kRows, kVectors, kAllLevels> finished;
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

template <class T, int kRows, int kVectors> void run_last_tile(PanelTile<T> t) { run_tile<T, kRows, kVectors>(t); }

template <class T, int kVectors, size_t... kRows>
void run_rows(PanelTile<T> t, int64_t rows, std::index_sequence<kRows...>) {
  constexpr int64_t kMost = sizeof...(kRows);
  constexpr void (*kTiles[])(PanelTile<T>) = {run_last_tile<T, int(kRows) + 1, kVectors>...};
  for (; rows >= 2 * kMost || rows == kMost; rows -= kMost) {
    run_tile<T, kMost, kVectors>(t);
    t.a += kMost * t.down, t.out += kMost * t.ldc;
  }
  // The last two tiles have about the same height, because a low tile would wait for the latency of its additions.
  if (rows > kMost) {
    const int64_t half = rows / 2;
    kTiles[half - 1](t);
    t.a += half * t.down, t.out += half * t.ldc, rows -= half;
  }
  if (rows) kTiles[rows - 1](t);
}

}  // namespace

template <class T, int kVectors> void run_rows(const PanelTile<T>& t, int64_t rows) {
  constexpr int kMostRows = kVectors == 4 ? 2 : kTileSums / kVectors;  // wide panels are for products of one or two rows
  run_rows<T, kVectors>(t, rows, std::make_index_sequence<kMostRows>());
}
template void run_rows<float, 1>(const PanelTile<float>&, int64_t);
template void run_rows<float, 2>(const PanelTile<float>&, int64_t);
template void run_rows<float, 4>(const PanelTile<float>&, int64_t);
template void run_rows<double, 1>(const PanelTile<double>&, int64_t);
template void run_rows<double, 2>(const PanelTile<double>&, int64_t);
template void run_rows<double, 4>(const PanelTile<double>&, int64_t);

}  // namespace pb::cpu
