// The loops of scatters. Threads divide the targets among themselves, never the updates of a target. So the result is the same for
// any number of threads, and no atomics are needed.
#pragma once
#include <algorithm>

#include "cpu/index.h"
#include "cpu/long_sums.h"
#include "families/scatter.h"

namespace pb::cpu {

// A task of a scatter. Its n updates are all updates, or those listed in `which` if it is not null. They are combined into columns
// [column, column + width) of the target rows that `index` names. Target and updates have `inner` columns.
struct ScatterTask {
  const int64_t* index;
  const int64_t* which;
  int64_t n, inner, column, width;
  LongSums* sums;  // null if no target has more than kSumBlock updates, or if the op has no sums
};
using ScatterLoop = void (*)(void* target, const void* updates, const ScatterTask& task);

using kernels::Add;
using kernels::kHasLongSums;
using kernels::Max;
using kernels::Min;
using kernels::Set;

constexpr int64_t kLanes = 16;  // the columns of a strip; strips are the unit in which columns are combined and shared

template <class Op, class C>
inline void combine_row(C* __restrict y, const C* __restrict u, int64_t width) {
  const Op op;
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    for (int64_t k = 0; k < kLanes; ++k) y[i + k] = op(y[i + k], u[i + k]);
  for (; i < width; ++i) y[i] = op(y[i], u[i]);
}

// Target rows are visited in an order that no hardware prefetcher predicts, and update rows lie a stride apart if threads split the
// columns. So rows of at least a cache line are prefetched, kRowsAhead rows in advance. Of wide rows only the first
// lines are prefetched, because the hardware prefetcher follows with the rest.
constexpr int64_t kRowsAhead = 16;
constexpr size_t kLine = 64, kLinesAhead = 4 * kLine;  // bytes

template <class C> inline void fetch_row(const C* y, const C* u, int64_t width) {
  const size_t bytes = std::min(width * sizeof(C), kLinesAhead);
  for (size_t line = 0; line < bytes; line += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(y) + line, 1);
    __builtin_prefetch(reinterpret_cast<const char*>(u) + line);
  }
}

// Combine an update of width elements, or of one, into its target at y.
template <class Op> struct Combine {
  static void fetch(int64_t) {}
  template <class C> void operator()(int64_t, C* y, const C* u, int64_t width) const { combine_row<Op>(y, u, width); }
  template <class C> void operator()(int64_t, C* y, C u) const { *y = Op()(*y, u); }
};
// Add counts the updates of each target, and moves its sum to the float64 sums after each block of kSumBlock updates.
struct AddCounted {
  uint8_t* counts;
  LongSums* sums;

  explicit AddCounted(LongSums& long_sums) : counts(long_sums.counts()), sums(&long_sums) {}
  void fetch(int64_t target) const { __builtin_prefetch(counts + target, 1); }
  void count(int64_t target, float* y) const {
    uint8_t count = counts[target];
    if (__builtin_expect(LongSums::block_ends(count), 0)) count = sums->next_block(target, y);
    counts[target] = uint8_t(count + 1);
  }
  void operator()(int64_t target, float* y, const float* u, int64_t width) const {
    count(target, y);
    combine_row<Add>(y, u, width);
  }
  void operator()(int64_t target, float* y, float u) const {
    count(target, y);
    *y = Add()(*y, u);
  }
};

// Combines the updates at(0), at(1), ... into their target rows.
template <class C, class At, class Combine>
void combine_rows(C* y, const C* u, const ScatterTask& task, const At& at, Combine combine) {
  const int64_t n = task.n, inner = task.inner, width = task.width;
  const int64_t* index = task.index;
  int64_t k = 0;
  if (width * sizeof(C) >= kLine)
    for (; k + kRowsAhead < n; ++k) {
      const int64_t j = at(k), later = at(k + kRowsAhead);
      combine.fetch(index[later]);
      fetch_row(y + index[later] * inner, u + later * inner, width);
      combine(index[j], y + index[j] * inner, u + j * inner, width);
    }
  for (; k < n; ++k) combine(index[at(k)], y + index[at(k)] * inner, u + at(k) * inner, width);
}

template <class C, class Combine>
void combine_updates(C* y, const C* u, const ScatterTask& task, Combine combine) {
  if (task.inner == 1) {
    for (int64_t k = 0; k < task.n; ++k) {
      const int64_t j = task.which ? task.which[k] : k;
      combine(task.index[j], y + task.index[j], u[j]);
    }
  } else if (task.which) {
    combine_rows(y, u, task, [which = task.which](int64_t k) { return which[k]; }, combine);
  } else {
    combine_rows(y, u, task, [](int64_t k) { return k; }, combine);
  }
}

template <class Op, class C> void scatter_loop(void* target, const void* updates, const ScatterTask& task) {
  C* y = static_cast<C*>(target) + task.column;
  const C* u = static_cast<const C*>(updates) + task.column;
  if constexpr (kHasLongSums<Op, C>)
    if (task.sums) return combine_updates(y, u, task, AddCounted(*task.sums));
  combine_updates(y, u, task, Combine<Op>{});
}

}  // namespace pb::cpu
