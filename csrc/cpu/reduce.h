// The reduction loops. They combine terms in the order of families/order.h.
#pragma once
#include <algorithm>

#include "families/order.h"
#include "families/reduce.h"

namespace pb::cpu {

using kernels::kOrderBlock;

// ---- rule 2: the terms of a block
//
// Terms whose numbers are equal modulo a power of two, `groups`, form a group. By rule 2 each group may be reduced first, and then
// the results of the groups. A group has at most kFan terms, which are combined in registers.

constexpr int64_t kFan = 8;
constexpr int64_t kMostGroups = kOrderBlock / kFan;

inline int64_t groups_of(int64_t terms) {
  int64_t groups = 1;
  while (groups * kFan < terms) groups *= 2;
  return groups;
}

// Combines x[0], x[stride], ..., x[(kCount - 1) * stride]: those with even numbers, those with odd numbers, and then both results.
template <class R, int kCount, class A> PB_HD A combine_terms(const A* x, int64_t stride) {
  if constexpr (kCount == 1) return *x;
  else
    return R::combine(combine_terms<R, (kCount + 1) / 2>(x, 2 * stride), combine_terms<R, kCount / 2>(x + stride, 2 * stride));
}

// Sets out[j], for 0 <= j < n, to the combination of the `count` <= kFan terms x[j], x[j + stride], .... out may be x.
template <class R, int kCount, class A> PB_HD void combine_each(int64_t stride, int64_t n, const A* x, A* out) {
#pragma GCC ivdep
  for (int64_t j = 0; j < n; ++j) out[j] = combine_terms<R, kCount>(x + j, stride);
}
template <class R, class A> inline void combine_each(int64_t count, int64_t stride, int64_t n, const A* x, A* out) {
  switch (count) {
    case 1: return combine_each<R, 1>(stride, n, x, out);
    case 2: return combine_each<R, 2>(stride, n, x, out);
    case 3: return combine_each<R, 3>(stride, n, x, out);
    case 4: return combine_each<R, 4>(stride, n, x, out);
    case 5: return combine_each<R, 5>(stride, n, x, out);
    case 6: return combine_each<R, 6>(stride, n, x, out);
    case 7: return combine_each<R, 7>(stride, n, x, out);
    case 8: return combine_each<R, 8>(stride, n, x, out);
  }
}

// Reduces each group of rows of a contiguous matrix to a row of `out`. Rows of different groups are one long row.
template <class R, class A>
inline void reduce_groups(int64_t rows, int64_t width, int64_t groups, const A* x, A* out) {
  const int64_t count = rows / groups, larger = rows % groups * width;
  combine_each<R>(count + 1, groups * width, larger, x, out);
  combine_each<R>(count, groups * width, groups * width - larger, x + larger, out + larger);
}

// Reduces kCount terms, a power of two, by loops of constant length.
template <class R, int64_t kCount, class A> PB_HD A reduce_lanes(const A* x) {
  if constexpr (kCount == 1) return *x;
  A half[kCount / 2 + (kCount == 1)];
  combine_each<R, 2>(kCount / 2, kCount / 2, x, half);
  return reduce_lanes<R, kCount / 2>(half);
}

// Reduces 0 < n <= kOrderBlock terms.
template <class R, class A> inline A reduce_line(int64_t n, const A* x) {
  alignas(64) A lanes[kMostGroups];
  const int64_t groups = groups_of(n);
  if (n == kOrderBlock) combine_each<R, kFan>(kMostGroups, kMostGroups, x, lanes);  // a loop of constant length
  else reduce_groups<R>(n, 1, groups, x, lanes);
  switch (groups) {
    case 1: return reduce_lanes<R, 1>(lanes);
    case 2: return reduce_lanes<R, 2>(lanes);
    case 4: return reduce_lanes<R, 4>(lanes);
    case 8: return reduce_lanes<R, 8>(lanes);
    case 16: return reduce_lanes<R, 16>(lanes);
    default: return reduce_lanes<R, kMostGroups>(lanes);
  }
}

// The same, as a function of its own. Most rows are added, and cpu/row_sums.cpp compiles that for all kernels.
template <class R, class A> A reduce_terms(int64_t n, const A* x) { return reduce_line<R>(n, x); }
extern template float reduce_terms<sum_reduce>(int64_t, const float*);
extern template double reduce_terms<sum_reduce>(int64_t, const double*);

// Reduces each column of a matrix of 0 < rows <= kOrderBlock to out[column]. `lanes` has room for groups_of(rows) rows.
template <class R, class A>
inline void reduce_block(int64_t rows, int64_t width, const A* x, int64_t row_stride, A* lanes, A* out) {
  if (width == 1 && row_stride == 1) return void(*out = reduce_line<R>(rows, x));
  int64_t groups = groups_of(rows);
  A* to = groups > 1 ? lanes : out;
  if (row_stride == width) reduce_groups<R>(rows, width, groups, x, to);
  else
    for (int64_t g = 0; g < groups; ++g)
      combine_each<R>((rows - g + groups - 1) / groups, groups * row_stride, width, x + g * row_stride, to + g * width);
  while (groups > 1) {
    const int64_t left = groups_of(groups);
    reduce_groups<R>(groups, width, left, lanes, left > 1 ? lanes : out);
    groups = left;
  }
}

// ---- rule 3: the results of blocks

// Reduces a contiguous matrix (rows, width) over its rows, in place. The result is its first row.
template <class R, class A> void reduce_pairs(int64_t rows, int64_t width, A* x) {
  for (; rows > 1; rows = (rows + 1) / 2) {
    for (int64_t row = 0; row < rows; row += 2) {
      const A *a = x + row * width, *b = a + width;
      A* out = x + row / 2 * width;
      if (row + 1 == rows) std::copy(a, b, out);
      else combine_each<R, 2>(width, width, a, out);
    }
  }
}

// Prefetches n upcoming elements from element i on, before the work on the current ones. The hardware prefetcher alone reaches half
// of the memory bandwidth: it stops at the end of a page, and loops this short reach the next page too soon.
template <class C> struct Prefetch {
  const C* x;
  void operator()(int64_t i, int64_t n) const {
    const char* p = reinterpret_cast<const char*>(x + i);  // prefetching beyond the operand is harmless
    for (int64_t byte = 0; byte < n * int64_t(sizeof(C)); byte += 64) __builtin_prefetch(p + byte, 0, 2);  // to the L2 cache
  }
};
struct NoPrefetch {
  void operator()(int64_t, int64_t) const {}
};

// Reduces the n > 0 terms from at(begin) on by R. The terms before the largest power of two below n are combined with the others
// last: this is rule 3 for n > kOrderBlock.
template <class R, class A, class At, class Ahead = NoPrefetch>
[[gnu::noinline]] A reduce_row(int64_t n, const At& at, const Ahead& ahead = {}, int64_t begin = 0) {
  if (n > kOrderBlock) {
    const int64_t half = kernels::upper_half(n);
    const A a = reduce_row<R, A>(half, at, ahead, begin);
    return R::combine(a, reduce_row<R, A>(n - half, at, ahead, begin + half));
  }
  alignas(64) A terms[kOrderBlock];
  ahead(begin, n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) terms[i] = at(begin + i);
  return reduce_terms<R>(n, terms);
}

}  // namespace pb::cpu
