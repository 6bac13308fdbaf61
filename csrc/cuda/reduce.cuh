// The kernel of reductions. It combines terms in the order of families/order.h, however the work is divided.
#pragma once
#include "cuda/elements.cuh"
#include "families/order.h"
#include "math/functors.h"

namespace pb::cuda {

using kernels::kOrderBlock;

constexpr int kReducers = 512;  // the most threads per block
constexpr int kRowsOfThread =
    16;  // the most rows of a block of rows that a thread reduces; so many loads hide the memory's latency
constexpr int kMostDown = int(kOrderBlock) / kRowsOfThread;
constexpr int kMostAcross = 32;
constexpr int kRunsOfThread = 8;    // the most runs whose results a thread combines
constexpr int kPendingLevels = 24;  // the most blocks of rows that a team reduces, as a logarithm

// Byte offsets along the rows, which are one axis, or two that do not collapse.
struct RowAxes {
  bool two;
  Divider length;        // of the second of two axes
  int64_t along, apart;  // bytes from element to element of the last axis, and of the first of two axes

  explicit RowAxes(const View& v) : two(v.ndim == 2 && v.size() > 0), along(0), apart(0) {
    if (v.ndim > 0) along = v.stride[v.ndim - 1];
    if (two) length = Divider(uint32_t(v.shape[1])), apart = v.stride[0];
  }
  static bool takes(const View& v) { return v.ndim <= 1 || (v.ndim == 2 && v.size() <= kMaxWalk); }
  __device__ int64_t offset(int64_t row) const {
    if (!two) return row * along;
    const uint32_t first = length.divide(uint32_t(row));
    return first * apart + (row - first * length.divisor) * along;
  }
};

// The arguments of a reduction. A team of across x down threads reduces a block of rows of neighbouring columns: thread (x, y)
// reduces rows y, y + down, ... of column x. `teams` teams share the rows of a cell, and a block of threads has room for several
// cells. Each team takes `depth` consecutive blocks of rows, and what the teams take together is a run. These four numbers are powers
// of two, given by their logarithms.
struct Reducing {
  const char* data;
  DType dtype;
  Axes outer;
  RowAxes reduced;
  int64_t column_stride;  // bytes
  int64_t cells, rows, width, blocks;
  int log_across, log_down, log_teams, log_depth;
  unsigned tiles, runs;  // tiles of columns, and runs of rows, per cell
  char* out;
  DType out_dtype;
  int out_size;
  bool divides;
  void* partial = nullptr;  // the results of the runs, [cells, runs, width]
  unsigned* tickets = nullptr;

  template <class C> __device__ void finish(int64_t i, C a) const {
    if constexpr (std::is_floating_point_v<C>)
      if (divides) a = a / C(rows);
    store_as<C>(out_dtype, out + i * out_size, a);
  }
};

// Combines the upper half of kCount values with the lower half until one is left. Value k exists if k < count.
template <class R, int kCount, class C> __device__ inline void combine_halves(C* a, int count) {
  if constexpr (kCount > 1) {
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k)
      if (k + kCount / 2 < count) a[k] = R::combine(a[k], a[k + kCount / 2]);
    combine_halves<R, kCount / 2>(a, count);
  }
}
// Combines neighbours among the first kCount values, which are kStep apart, until one is left. Value k exists if k < count.
template <class R, int kCount, int kStep = 1, class C> __device__ inline void combine_pairs(C* a, int count) {
  if constexpr (kStep < kCount) {
#pragma unroll
    for (int k = 0; k < kCount; k += 2 * kStep)
      if (k + kStep < count) a[k] = R::combine(a[k], a[k + kStep]);
    combine_pairs<R, kCount, 2 * kStep>(a, count);
  }
}

// Combines 0 < count <= kMost rows of a block by rule 2: row `first` and the rows that follow it in steps of `step`. row_at(row)
// returns the address of a row.
template <class R, class C, int kMost, class RowAt>
__device__ inline C combine_rows(DType dtype, int first, int step, int count, const RowAt& row_at) {
  if constexpr (kMost > kAhead<C>) {
    C a{};
#pragma unroll 1
    for (int odd = 0; odd < 2 && odd < count; ++odd) {
      const C half = combine_rows<R, C, kMost / 2>(dtype, first + odd * step, 2 * step, (count + 1 - odd) / 2, row_at);
      a = odd ? R::combine(a, half) : half;
    }
    return a;
  } else {
    Raw<C> raw[kMost];
#pragma unroll
    for (int k = 0; k < kMost; ++k)
      if (k < count) raw[k] = load_raw<C>(dtype, row_at(first + k * step));
    C a[kMost];
    by_storage<C>(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
#pragma unroll
      for (int k = 0; k < kMost; ++k)
        if (k < count) a[k] = from_raw<C, T>(raw[k]);
    });
    combine_halves<R, kMost>(a, count);
    return a[0];
  }
}

// Combines the values of the first `count` of the `down` threads y of a team by rule 2. Thread 0 gets the result. All threads must
// call it.
template <class R, class C> __device__ inline C combine_down(C a, int y, int count, int down, int across, C* shared) {
  const int t = int(threadIdx.x);
  int half = down / 2;
  if (half * across >= int(kWarp)) {
    __syncthreads();  // waits until the previous values have been read
    shared[t] = a;
    for (; half * across >= int(kWarp); half /= 2) {
      __syncthreads();
      if (y < half && y + half < count) shared[t] = a = R::combine(a, shared[t + half * across]);
    }
  }
  for (; half > 0; half /= 2) {
    const C upper = shuffle_xor(a, half * across);
    if (y < half && y + half < count) a = R::combine(a, upper);
  }
  return a;
}

// Combines `count` values by rule 3. Value i belongs to the thread that passes i, and value i + 1 to the thread `apart` threads
// further on. The thread that passes 0 gets the result, and threads without a value pass -1. All threads must call it.
template <class R, class C> __device__ inline C combine_neighbours(C a, int i, int count, int apart, C* shared) {
  const int t = int(threadIdx.x);
  __syncthreads();
  shared[t] = a;
  for (int step = 1; step < count; step *= 2) {
    __syncthreads();
    if (i % (2 * step) == 0 && i + step < count) shared[t] = a = R::combine(a, shared[t + step * apart]);
  }
  return a;
}

// The results of consecutive blocks of rows, combined by rule 3 as far as pairs are complete: if bit k of the number of blocks is
// set, level[k * stride] holds the result of 2^k blocks.
template <class R, class C> struct Pending {
  C* level;
  int stride, count = 0;

  __device__ void push(C a) {
    int k = 0;
    for (; count >> k & 1; ++k) a = R::combine(level[k * stride], a);
    level[k * stride] = a;
    ++count;
  }
  __device__ C combined() const {
    int k = 0;
    while (!(count >> k & 1)) ++k;
    C a = level[k * stride];
    for (++k; count >> k; ++k)
      if (count >> k & 1) a = R::combine(level[k * stride], a);
    return a;
  }
};

// Combines the results of all runs of a cell by rule 3. Each thread first combines those of kRunsOfThread runs. Thread x below
// `across` gets the result of column x of the tile.
template <class R, class C> __device__ inline C combine_runs(const Reducing& f, int64_t cell, int64_t column, C* shared) {
  const int i = int(threadIdx.x) >> f.log_across, first = i * kRunsOfThread, runs = int(f.runs);
  const int left = column < f.width ? runs - first : 0;
  const C* from = static_cast<const C*>(f.partial) + (cell * runs + first) * f.width + column;
  C a[kRunsOfThread];
#pragma unroll
  for (int k = 0; k < kRunsOfThread; ++k)
    if (k < left) a[k] = read_fresh(from + k * f.width);
  combine_pairs<R, kRunsOfThread>(a, left);
  return combine_neighbours<R>(a[0], left > 0 ? i : -1, (runs + kRunsOfThread - 1) / kRunsOfThread, 1 << f.log_across, shared);
}

template <class R, class C> __global__ void __launch_bounds__(kReducers, 2) reduce(const __grid_constant__ Reducing f) {
  __shared__ C shared[kReducers], pending_of[kPendingLevels][kReducers / kMostDown];
  const int across = 1 << f.log_across, down = 1 << f.log_down, teams = 1 << f.log_teams, depth = 1 << f.log_depth;
  const int t = int(threadIdx.x), x = t & (across - 1), y = t >> f.log_across & (down - 1);
  const int team = t >> (f.log_across + f.log_down), part = team & (teams - 1);
  const unsigned unit = blockIdx.x / f.runs, run = blockIdx.x % f.runs;  // a unit is finished by the last of its runs
  const unsigned cells_at_once = blockDim.x >> (f.log_across + f.log_down + f.log_teams);
  const int64_t cell = int64_t(unit / f.tiles) * cells_at_once + (team >> f.log_teams);
  const int64_t column = int64_t(unit % f.tiles) * across + x, first = (int64_t(run) * teams + part) * depth;
  const bool active = cell < f.cells && column < f.width;
  const char* data = active ? f.data + f.outer.offset(cell) + column * f.column_stride : f.data;

  C a = R::template identity<C>();
  Pending<R, C> pending{&pending_of[0][team * across + x], kReducers / kMostDown};
  for (int b = 0; b < depth; ++b) {
    const int64_t row = (first + b) * kOrderBlock, left = active ? f.rows - row : 0;
    const int m = int(left < 0 ? 0 : left < kOrderBlock ? left : kOrderBlock);
    if (y < m) {
      const auto row_at = [&](int k) { return data + f.reduced.offset(row + k); };
      a = combine_rows<R, C, kRowsOfThread>(f.dtype, y, down, (m - y + down - 1) >> f.log_down, row_at);
    }
    a = combine_down<R>(a, y, m, down, across, shared);
    if (depth > 1 && m > 0 && y == 0) pending.push(a);
  }
  if (pending.count > 0) a = pending.combined();
  if (teams > 1) {
    const int64_t parts = (f.blocks - int64_t(run) * teams * depth + depth - 1) >> f.log_depth;
    a = combine_neighbours<R>(a, y == 0 && active ? part : -1, int(parts < teams ? parts : teams), across * down, shared);
  }
  const bool leads = y == 0 && part == 0 && active;
  if (f.runs > 1) {
    if (leads) static_cast<C*>(f.partial)[(cell * f.runs + run) * f.width + column] = a;
    if (!last_to_arrive(f.tickets + unit, f.runs)) return;
    a = combine_runs<R>(f, cell, column, shared);
  }
  if (leads) f.finish(cell * f.width + column, a);
}

}  // namespace pb::cuda
