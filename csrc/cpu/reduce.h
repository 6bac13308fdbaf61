// The reduction loop. The number of lanes is the same for every vector width, so that the order of additions is the same, too.
#pragma once
#include "families/reduce.h"

namespace pb::cpu {

using kernels::kColumnDepth;
using kernels::kFoldBlock;
using kernels::kLanes;

// Combines lanes 0 to count - 1 by halves, in place. These are count - 1 combinations, in an order that depends on count alone.
template <class R, class A> inline A fold_lanes(int64_t count, A* acc) {
  if (count == kLanes) {  // loops of constant length are vectorized
    for (int j = 0; j < 32; ++j) acc[j] = R::combine(acc[j], acc[j + 32]);
    for (int j = 0; j < 16; ++j) acc[j] = R::combine(acc[j], acc[j + 16]);
    count = 16;
  }
  for (int64_t half = kLanes / 2; half; half /= 2) {
    for (int64_t j = 0; j + half < count; ++j) acc[j] = R::combine(acc[j], acc[j + half]);
    count = count < half ? count : half;
  }
  return acc[0];
}

// Prefetches upcoming elements, sixty-four at a time, between the work on the current ones. The hardware prefetcher alone reaches
// half of the memory bandwidth: it stops at the end of a page, and loops this short reach the next page too soon.
template <class C> struct Prefetch {
  const C* x;
  void operator()(int64_t i) const {
    const char* p = reinterpret_cast<const char*>(x + i);  // prefetching beyond the operand is harmless
    for (size_t line = 0; line < kLanes * sizeof(C); line += 64) __builtin_prefetch(p + line);
  }
};
struct NoPrefetch {
  void operator()(int64_t) const {}
};

// Reduces at(0), ..., at(n - 1) by R, for 0 < n <= kFoldBlock. Lane i % 64 accumulates at(i). The lanes are in memory, because no
// SIMD level has registers for all of them, and the L1 cache is fast enough.
template <class R, class A, class At, class Ahead = NoPrefetch>
inline A fold_block(int64_t n, const At& at, const Ahead& ahead = {}) {
  alignas(64) A lanes[kLanes];
  A* acc = lanes;
  // Hides the array from gcc, which would otherwise make the stores of unchanged lanes conditional and not vectorize the loop.
  asm("" : "+r"(acc));
  const int64_t first = n < kLanes ? n : kLanes;
  for (int64_t j = 0; j < first; ++j) acc[j] = at(j);
  if (n <= kLanes) return fold_lanes<R>(n, acc);
  ahead(0);
  int64_t i = kLanes;
  for (; i + kLanes <= n; i += kLanes) {
    ahead(i);
#pragma GCC ivdep
    for (int64_t j = 0; j < kLanes; ++j) acc[j] = R::combine(acc[j], A(at(i + j)));
  }
  for (int64_t j = 0; i + j < n; ++j) acc[j] = R::combine(acc[j], A(at(i + j)));
  return fold_lanes<R>(kLanes, acc);
}

// Like fold_block, for a row of any length n > 0. The results of its blocks are combined in order.
template <class R, class A, class At, class Ahead = NoPrefetch>
inline A fold_row(int64_t n, const At& at, const Ahead& ahead = {}) {
  A a = fold_block<R, A>(n < kFoldBlock ? n : kFoldBlock, at, ahead);
  for (int64_t i = kFoldBlock; i < n; i += kFoldBlock) {
    const int64_t left = n - i < kFoldBlock ? n - i : kFoldBlock;
    a = R::combine(a,
                   fold_block<R, A>(left, [&at, i](int64_t k) { return at(i + k); }, [&ahead, i](int64_t k) { ahead(i + k); }));
  }
  return a;
}

// Cells are rectangles of `rows` by `width` elements that are reduced over their rows. Strides are in elements.
struct Cells {
  int64_t count, stride;  // the number of cells, and the distance between two
  int64_t rows, row_stride, width;
  int64_t groups;  // rows r, r + groups, ... share lanes, so that narrow matrices fill vectors, too
};

// Sets acc[j], for 0 <= j < width, to the reduction by R of map(x[row, j]) over the rows. If groups > 1, the rows must be
// contiguous one after another.
template <class R, bool kMapped, class A, class C>
inline void fold_cell(const Cells& cell, const C* x, A* acc) {
  const auto at = [](C value) {
    if constexpr (kMapped) return A(R::map(value));
    else return A(value);
  };
  const int64_t lanes = cell.width * cell.groups, stride = cell.groups > 1 ? lanes : cell.row_stride;
  const int64_t whole = cell.rows / cell.groups, rest = (cell.rows - whole * cell.groups) * cell.width;
  const int64_t first = whole ? lanes : rest;
  for (int64_t j = 0; j < first; ++j) acc[j] = at(x[j]);
  for (int64_t row = 1; row < whole; ++row) {
    const C* p = x + row * stride;
#pragma GCC ivdep
    for (int64_t j = 0; j < lanes; ++j) acc[j] = R::combine(acc[j], at(p[j]));
  }
  if (whole) {
    const C* p = x + whole * stride;
    for (int64_t j = 0; j < rest; ++j) acc[j] = R::combine(acc[j], at(p[j]));
  }
  int64_t count = first;
  for (int64_t half = lanes / 2; half >= cell.width; half /= 2) {
    for (int64_t j = 0; j + half < count; ++j) acc[j] = R::combine(acc[j], acc[j + half]);
    count = count < half ? count : half;
  }
}

// The function that a level of a reduction calls. It writes results[cell * width + j] for all cells.
using Fold = void (*)(const Cells& cells, const void* x, void* results);

// Reduces short rows. Vector lanes process sixty-four rows at a time, and each row is combined in the same order as in fold_block.
template <class R, bool kMapped, class C, class A> void fold_short_rows(const Cells& cells, const C* x, A* out) {
  alignas(64) A lanes[kLanes * kLanes];
  for (int64_t k = 0; k < cells.count; k += kLanes) {
    const int64_t count = cells.count - k < kLanes ? cells.count - k : kLanes;
    const C* p = x + k * cells.stride;
    for (int64_t row = 0; row < cells.rows; ++row)
      for (int64_t j = 0; j < count; ++j) {
        if constexpr (kMapped) lanes[row * count + j] = A(R::map(p[j * cells.stride + row]));
        else lanes[row * count + j] = p[j * cells.stride + row];
      }
    fold_cell<R, false>(Cells{1, 0, cells.rows, 0, count, kLanes}, lanes, lanes);
    for (int64_t j = 0; j < count; ++j) out[k + j] = lanes[j];
  }
}

template <class R, bool kMapped, class C, class A> void fold_cells(const Cells& cells, const void* x, void* results) {
  const C* p = static_cast<const C*>(x);
  A* out = static_cast<A*>(results);
  const bool lines = cells.groups == kLanes;  // a cell that is one column of a wider matrix has fewer groups
  if (lines && cells.rows < kLanes && cells.count > 2) return fold_short_rows<R, kMapped>(cells, p, out);
  if (lines) {
    constexpr int64_t kAhead = 16 * 1024 / sizeof(C);
    for (int64_t k = 0; k < cells.count; ++k, p += cells.stride) {
      out[k] = fold_block<R, A>(
          cells.rows,
          [p](int64_t i) {
            if constexpr (kMapped) return A(R::map(p[i]));
            else return p[i];
          },
          Prefetch<C>{p + kAhead});
    }
    return;
  }
  alignas(64) A lanes[2 * kLanes];
  for (int64_t k = 0; k < cells.count; ++k, p += cells.stride, out += cells.width) {
    if (cells.groups == 1) {
      fold_cell<R, kMapped>(cells, p, out);
      continue;
    }
    fold_cell<R, kMapped>(cells, p, lanes);
    for (int64_t j = 0; j < cells.width; ++j) out[j] = lanes[j];
  }
}

// A reduction with its loop for each compute type, or null if the reduction is not defined for it.
struct ReductionKernel : kernels::Reduction {
  Fold first[kComputes], next[kComputes];  // for the first level, and for levels over the results of the previous one
  void (*identity[kComputes])(int64_t n, void* results);
};

template <class R, class A> void fill_identity(int64_t n, void* results) {
  for (int64_t i = 0; i < n; ++i) static_cast<A*>(results)[i] = R::template identity<A>();
}

// Reduces a contiguous matrix (rows, width) over its rows, in place. The result is its first row.
template <class R, class A> void fold_rows_in_place(int64_t rows, int64_t width, A* x) {
  while (rows > 1) {
    const int64_t blocks = (rows + kColumnDepth - 1) / kColumnDepth;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = b * kColumnDepth, count = rows - first < kColumnDepth ? rows - first : kColumnDepth;
      fold_cell<R, false>(Cells{1, 0, count, width, width, 1}, x + first * width, x + b * width);
    }
    rows = blocks;
  }
}

}  // namespace pb::cpu
