// The kernel of reductions. The operand is a matrix [cells, rows, width] (families/reduce.h), and each column of each cell is reduced
// to one result. A team of across x down threads reduces a block of 256 rows of neighbouring columns:
//
//   column     0      1      2    ...   31
//   row 0    (0,0)  (1,0)  (2,0)     (31,0)      Thread (x, y) has rows y, y + down, y + 2 down, ... of column x, at most 16.
//   row 1    (0,1)  (1,1)  (2,1)     (31,1)
//    ...                                         along: across is 1, where neighbouring rows lie closest together. The 16
//   row 15   (0,15) (1,15) (2,15)    (31,15)     threads y read 16 neighbours at a time.
//   row 16   (0,0)  (1,0)  (2,0)     (31,0)
//    ...                                         across: across is 2 to 32, where neighbouring columns lie closest together.
//   row 255  (0,15) (1,15) (2,15)    (31,15)     The threads x read up to 32 neighbours at a time.
//
// The way from a launch to a store, in the order that order.cuh draws:
//   1. combine_rows         A thread reads its rows from a Source, and combines them by halves.
//   2. combine_down         The threads y of a team combine what they have, by halves. This is a block's result.
//   3. Pending              A team takes `depth` blocks of rows in turn, and combines their results in pairs of neighbours.
//   4. combine_neighbours   So do the `teams` teams of a thread block that share the rows of a cell,
//   5. combine_runs         and then the `runs` thread blocks that share them. The last of these to arrive does it.
//   6. Reducing::finish     The first thread y stores the result of its column.
// Few rows need steps 1, 2 and 6 only, and then a thread block has room for several cells.
#pragma once
#include "cuda/operand.cuh"
#include "cuda/order.cuh"

namespace pb::cuda {

constexpr int kReducers = 512;     // the most threads per block
constexpr int kRowsOfThread = 16;  // the most rows of a block of rows that a thread reduces: enough loads to hide their latency
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

// The arguments. Powers of two are given by their logarithms.
struct Reducing {
  const char* data;
  DType dtype;
  Axes outer;
  RowAxes reduced;
  int64_t column_stride;  // bytes
  int64_t cells, rows, width, blocks;
  int log_across, log_down, log_teams, log_depth;
  Divider tiles, runs;  // tiles of columns, and runs of rows, per cell
  char* out;
  DType out_dtype;
  int out_size;
  bool divides;
  void* partial = nullptr;  // the results of the runs, [cells, runs, width]
  unsigned* tickets = nullptr;

  template <class R, class C> __device__ void finish(int64_t i, C a) const {
    if constexpr (std::is_floating_point_v<C> && std::is_same_v<R, sum_reduce>)  // a mean
      if (divides) a = a / C(rows);
    store_as<C>(out_dtype, out + i * out_size, a);
  }
};

// ---- a Source gives the terms of one column
//
// from(first, by) is a cursor: read() reads its term, and next() goes on by `by` terms. value() converts what was read. kAtOnce is
// the number of terms that a thread reads before it combines them; there are fewer where reading one takes many instructions.
// kResident is the number of thread blocks that run on a multiprocessor: a thread may have 64 registers, or 40 if there are three.
// Turing has room for two.

// The lean source: float32 of which the rows are one axis, and the cells, too.
struct PlainTerms {
  using C = float;
  static constexpr int kResident = 2;
  static constexpr int kAtOnce = kRowsOfThread;
  const char* data;
  int64_t step;

  static bool takes(const View& outer, const View& rows) {
    return outer.dtype == DType::f32 && outer.ndim <= 1 && rows.ndim <= 1;
  }
  __device__ PlainTerms(const Reducing& f, int64_t cell, int64_t column)
      : data(f.data + cell * f.outer.stride[0] + column * f.column_stride), step(f.reduced.along) {}
  struct Cursor {
    const char* data;
    int64_t step;
    __device__ float read() const { return *reinterpret_cast<const float*>(data); }
    __device__ void next() { data += step; }
  };
  __device__ Cursor from(int64_t first, int by) const { return {data + first * step, by * step}; }
  __device__ float value(float x) const { return x; }
};

// Long rows of neighbouring float32 numbers, read in packs of 16 bytes.
struct PackedTerms {
  using C = float;
  static constexpr int kResident = 3;
  const float4* data;

  static bool takes(const View& outer, const View& rows, int64_t width) {
    const uint64_t places = reinterpret_cast<uintptr_t>(outer.data) | uint64_t(outer.ndim ? outer.stride[0] : 0);
    return PlainTerms::takes(outer, rows) && width == 1 && rows.ndim == 1 && rows.stride[0] == 4 && rows.shape[0] % 4 == 0 &&
           rows.shape[0] >= kOrderBlock && places % 16 == 0;
  }
  __device__ PackedTerms(const Reducing& f, int64_t cell, int64_t)
      : data(reinterpret_cast<const float4*>(f.data + cell * f.outer.stride[0])) {}
};
template <class S> constexpr bool kInPacks = std::is_same_v<S, PackedTerms>;

// Any dtype with the compute type A, along one axis or two, and cells along any axes.
template <class A> struct StridedTerms {
  using C = A;
  static constexpr int kResident = 2;
  static constexpr int kAtOnce = std::is_same_v<C, int64_t> ? 4 : 8;
  const Reducing& f;
  const char* data;

  __device__ StridedTerms(const Reducing& f, int64_t cell, int64_t column)
      : f(f), data(f.data + f.outer.offset(cell) + column * f.column_stride) {}
  struct Cursor {
    const StridedTerms& of;
    int64_t row;
    int by;
    __device__ Raw<C> read() const { return load_raw<C>(of.f.dtype, of.data + of.f.reduced.offset(row)); }
    __device__ void next() { row += by; }
  };
  __device__ Cursor from(int64_t first, int by) const { return {*this, first, by}; }
  __device__ C value(Raw<C> x) const { return widen<C>(f.dtype, x); }
};

// Results of runs, which other thread blocks have written.
template <class A> struct FreshTerms {
  using C = A;
  const C* data;
  int64_t step;  // in elements

  struct Cursor {
    const C* data;
    int64_t step;
    __device__ C read() const { return read_fresh(data); }
    __device__ void next() { data += step; }
  };
  __device__ Cursor from(int64_t first, int by) const { return {data + first * step, by * step}; }
  __device__ C value(C x) const { return x; }
};

// Reads `count` terms, all before the first is converted.
template <int kMost, class S>
__device__ __forceinline__ void load_terms(const S& source, int64_t first, int by, int count, typename S::C (&a)[kMost]) {
  auto cursor = source.from(first, by);
  decltype(cursor.read()) raw[kMost];
#pragma unroll
  for (int k = 0; k < kMost; ++k, cursor.next())
    if (k < count) raw[k] = cursor.read();
#pragma unroll
  for (int k = 0; k < kMost; ++k)
    if (k < count) a[k] = source.value(raw[k]);
}

// Combines the upper half of kCount values with the lower half until one is left. Value k exists if k < count.
template <class R, int kCount, class C> __device__ __forceinline__ void combine_halves(C* a, int count) {
  if constexpr (kCount > 1) {
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k)
      if (k + kCount / 2 < count) a[k] = R::combine(a[k], a[k + kCount / 2]);
    combine_halves<R, kCount / 2>(a, count);
  }
}
// Combines neighbours among the first kCount values, which are kStep apart, until one is left. Value k exists if k < count.
template <class R, int kCount, int kStep = 1, class C> __device__ __forceinline__ void combine_pairs(C* a, int count) {
  if constexpr (kStep < kCount) {
#pragma unroll
    for (int k = 0; k < kCount; k += 2 * kStep)
      if (k + kStep < count) a[k] = R::combine(a[k], a[k + kStep]);
    combine_pairs<R, kCount, 2 * kStep>(a, count);
  }
}

// ---- the steps

// Step 1. Combines 0 < count <= kMost terms by rule 2: the upper half with the lower half, until one is left.
template <class R, int kMost, class S>
__device__ __forceinline__ typename S::C combine_rows(const S& source, int64_t first, int step, int count) {
  using C = typename S::C;
  if constexpr (kMost > S::kAtOnce) {  // by halves, terms of odd numbers meet those of even numbers last
    C a{};
#pragma unroll 1
    for (int odd = 0; odd < 2 && odd < count; ++odd) {
      const C half = combine_rows<R, kMost / 2>(source, first + odd * step, 2 * step, (count + 1 - odd) / 2);
      a = odd ? R::combine(a, half) : half;
    }
    return a;
  } else {
    C a[kMost];
    load_terms(source, first, step, count, a);
    combine_halves<R, kMost>(a, count);
    return a[0];
  }
}

// Step 2. Combines the values of the first `count` threads y of a team by rule 2. Thread 0 gets the result. All threads must call
// it. Threads of one warp exchange values by shuffles, others through shared memory.
template <class R, class C> __device__ inline C combine_down(C a, int y, int count, int down, int across, C* shared) {
  const int t = int(threadIdx.x);
  int half = down / 2;
  if (half * across >= int(kWarp)) {
    __syncthreads();  // waits until the previous values have been read
    shared[t] = a;
#pragma unroll 1
    for (; half * across >= int(kWarp); half /= 2) {
      __syncthreads();
      if (y < half && y + half < count) shared[t] = a = R::combine(a, shared[t + half * across]);
    }
  }
#pragma unroll 1
  for (; half > 0; half /= 2) {
    const C upper = shuffle_xor(a, half * across);
    if (y < half && y + half < count) a = R::combine(a, upper);
  }
  return a;
}

// Steps 1 and 2 for 0 <= count <= 256 neighbouring rows, a multiple of 4. Thread y of 16 has rows 4y to 4y + 3 of every 64, so that
// the first two halvings are within a thread, the next four between threads, and the last two within a pack.
template <class R> __device__ __forceinline__ float combine_packs(const float4* rows, int y, int count) {
  constexpr int kPacks = kRowsOfThread / 4, kApart = kMostDown;
  float a[kPacks][4];
#pragma unroll
  for (int k = 0; k < kPacks; ++k)
    if (4 * (k * kApart + y) < count) {
      const float4 pack = rows[k * kApart + y];
      a[k][0] = pack.x, a[k][1] = pack.y, a[k][2] = pack.z, a[k][3] = pack.w;
    }
#pragma unroll
  for (int half = kPacks / 2; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < half; ++k)
      if (4 * ((k + half) * kApart + y) < count)
#pragma unroll
        for (int c = 0; c < 4; ++c) a[k][c] = R::combine(a[k][c], a[k + half][c]);
#pragma unroll 1
  for (int half = kApart / 2; half > 0; half /= 2)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float upper = shuffle_xor(a[0][c], half);
      if (y < half && 4 * (y + half) < count) a[0][c] = R::combine(a[0][c], upper);
    }
  combine_halves<R, 4>(a[0], y == 0 && count > 0 ? 4 : 0);
  return a[0][0];
}

// Step 3. The results of consecutive blocks of rows, combined by rule 3 as far as pairs are complete: if bit k of the number of
// blocks is set, level[k * stride] holds the result of 2^k blocks.
template <class R, class C> struct Pending {
  C* level;
  int stride, count = 0;

  __device__ void push(C a) {
    int k = 0;
#pragma unroll 1
    for (; count >> k & 1; ++k) a = R::combine(level[k * stride], a);
    level[k * stride] = a;
    ++count;
  }
  __device__ C combined() const {
    int k = __ffs(count) - 1;
    C a = level[k * stride];
#pragma unroll 1
    for (++k; count >> k; ++k)
      if (count >> k & 1) a = R::combine(level[k * stride], a);
    return a;
  }
};

// Step 4. Combines `count` values by rule 3. Value i belongs to the thread that passes i, and value i + 1 to the thread `apart`
// threads further on. The thread that passes 0 gets the result, and threads without a value pass -1. All threads must call it.
template <class R, class C> __device__ inline C combine_neighbours(C a, int i, int count, int apart, C* shared) {
  const int t = int(threadIdx.x);
  __syncthreads();
  shared[t] = a;
#pragma unroll 1
  for (int step = 1; step < count; step *= 2) {
    __syncthreads();
    if (i % (2 * step) == 0 && i + step < count) shared[t] = a = R::combine(a, shared[t + step * apart]);
  }
  return a;
}

// Step 5. Combines the results of all runs of a cell by rule 3. Each thread first combines those of kRunsOfThread runs. Thread x
// below `across` gets the result of column x of the tile.
template <class R, class C> __device__ inline C combine_runs(const Reducing& f, int64_t cell, int64_t column, C* shared) {
  const int i = int(threadIdx.x) >> f.log_across, first = i * kRunsOfThread, runs = int(f.runs.divisor);
  const int left = column < f.width ? runs - first : 0;
  const FreshTerms<C> source{static_cast<const C*>(f.partial) + cell * runs * f.width + column, f.width};
  C a[kRunsOfThread];
  load_terms(source, first, 1, left, a);
  combine_pairs<R, kRunsOfThread>(a, left);
  return combine_neighbours<R>(a[0], left > 0 ? i : -1, (runs + kRunsOfThread - 1) / kRunsOfThread, 1 << f.log_across, shared);
}

// Reads each term once and writes each result once. With two blocks of 512 threads on a multiprocessor, 16 loads of each thread,
// which are under way together, are 64 KiB of float32; with packs, three blocks have 96 KiB under way.
template <class R, class S>
__global__ void __launch_bounds__(kReducers, resident_blocks(S::kResident, kReducers))
    reduce(const __grid_constant__ Reducing f) {
  using C = typename S::C;
  __shared__ C shared[kReducers], pending_of[kPendingLevels * kReducers / kMostDown];
  const int across = 1 << f.log_across, down = 1 << f.log_down, teams = 1 << f.log_teams, depth = 1 << f.log_depth;
  const int t = int(threadIdx.x), x = t & (across - 1), y = t >> f.log_across & (down - 1);
  const int team = t >> (f.log_across + f.log_down), part = team & (teams - 1);
  const unsigned unit = f.runs.divide(blockIdx.x),
                 run = blockIdx.x - unit * f.runs.divisor;  // a unit is what several runs share
  const unsigned stack = f.tiles.divide(unit), tile = unit - stack * f.tiles.divisor;
  const unsigned cells_at_once = blockDim.x >> (f.log_across + f.log_down + f.log_teams);
  const int64_t cell = int64_t(stack) * cells_at_once + (team >> f.log_teams), column = int64_t(tile) * across + x;
  const bool active = cell < f.cells && column < f.width;
  const S source(f, active ? cell : 0, active ? column : 0);

  C a = R::template identity<C>();
  Pending<R, C> pending{pending_of + (team * across + x), kReducers / kMostDown};
  const int64_t first = (int64_t(run) * teams + part) * depth;
#pragma unroll 1
  for (int b = 0; b < depth; ++b) {
    const int64_t row = (first + b) * kOrderBlock, left = active ? f.rows - row : 0;
    const int m = int(left < 0 ? 0 : left < kOrderBlock ? left : kOrderBlock);
    if constexpr (kInPacks<S>) {
      a = combine_packs<R>(source.data + row / 4, y, m);
    } else {
      if (y < m) a = combine_rows<R, kRowsOfThread>(source, row + y, down, (m - y + down - 1) >> f.log_down);
      a = combine_down<R>(a, y, m, down, across, shared);
    }
    if (depth > 1 && m > 0 && y == 0) pending.push(a);
  }
  if (pending.count > 0) a = pending.combined();
  if (teams > 1) {
    const int64_t parts = (f.blocks - int64_t(run) * teams * depth + depth - 1) >> f.log_depth;
    a = combine_neighbours<R>(a, y == 0 && active ? part : -1, int(parts < teams ? parts : teams), across * down, shared);
  }
  const bool leads = y == 0 && part == 0 && active;
  if (f.runs.divisor > 1) {
    if (leads) static_cast<C*>(f.partial)[(cell * f.runs.divisor + run) * f.width + column] = a;
    if (!last_to_arrive(f.tickets + unit, f.runs.divisor)) return;
    a = combine_runs<R>(f, cell, column, shared);
  }
  if (leads) f.finish<R>(cell * f.width + column, a);
}

}  // namespace pb::cuda
