// Reductions of a single column. If neighbouring rows lie closest together, teams of sixteen threads reduce the rows of a cell; if
// neighbouring cells do, each thread takes one cell. Both use sixty-four lanes per 1,024 rows, in the order of kernels::cut.
#pragma once
#include "cuda/reduce_matrix.cuh"

namespace pb::cuda {

using kernels::kFoldBlock;
using kernels::kLanes;

constexpr int kTeam = 16, kTeamLanes = 4;  // threads per team, and lanes per thread
constexpr unsigned kRowThreads = 128;
constexpr int kTeams = int(kRowThreads) / kTeam;
constexpr int64_t kShortRows = 16;  // the most rows that one thread reduces alone

// ---- the sources of a team: thread t's lane k of a line is number 4 t + k if packed, otherwise t + 16 k

template <class R, class C, class A> struct Packs {
  static constexpr bool kPacked = true;
  using Stored = C;
  using Loaded = RawPack<C>;
  RowsFrom rows;  // no pack crosses a gap between axes
  DType dtype;
  bool mirrors;

  __device__ bool has(int i, int, int m) const { return i * int(kLanes) + 4 * int(threadIdx.x % kTeam) + 4 <= m; }
  __device__ void line(int i, int m, bool all, Loaded& x) const {
    if (all || has(i, 0, m)) x = load_raw_pack<C>(dtype, rows.at(i * int(kLanes) + 4 * int(threadIdx.x % kTeam)));
  }
  template <class T> __device__ A value(const Loaded& x, int k) const { return mapped<R>(A(from_raw<C, T>(x, k)), mirrors); }
  __device__ A one(int e) const { return mapped<R>(A(load_as<C>(dtype, rows.at(e))), mirrors); }
};

template <class R, class C, class A> struct Strided {
  static constexpr bool kPacked = false;
  using Stored = C;
  struct Loaded {
    Raw<C> v[kTeamLanes];
  };
  RowsFrom rows;
  DType dtype;
  bool mirrors;

  __device__ bool has(int i, int k, int m) const { return i * int(kLanes) + int(threadIdx.x % kTeam) + kTeam * k < m; }
  __device__ void line(int i, int m, bool all, Loaded& x) const {
#pragma unroll
    for (int k = 0; k < kTeamLanes; ++k)
      if (all || has(i, k, m)) x.v[k] = load_raw<C>(dtype, rows.at(i * int(kLanes) + int(threadIdx.x % kTeam) + kTeam * k));
  }
  template <class T> __device__ A value(const Loaded& x, int k) const { return mapped<R>(A(from_raw<C, T>(x.v[k])), mirrors); }
};

template <class A> struct Fresh {
  static constexpr bool kPacked = false;
  using Stored = int64_t;  // a type that is not converted
  struct Loaded {
    A v[kTeamLanes];
  };
  const A* data;
  DType dtype = DType::i64;

  __device__ bool has(int i, int k, int m) const { return i * int(kLanes) + int(threadIdx.x % kTeam) + kTeam * k < m; }
  __device__ void line(int i, int m, bool all, Loaded& x) const {
#pragma unroll
    for (int k = 0; k < kTeamLanes; ++k)
      if (all || has(i, k, m)) x.v[k] = read_fresh(data + i * int(kLanes) + int(threadIdx.x % kTeam) + kTeam * k);
  }
  template <class T> __device__ A value(const Loaded& x, int k) const { return x.v[k]; }
};

// Combines the lines of a block of m rows into the lanes. kWhole: the block has all its rows.
template <class R, int kBatch, bool kWhole, class A, class Source>
__device__ inline void add_lines(int lines, int m, const Source& source, A (&acc)[kTeamLanes]) {
#pragma unroll 1
  for (int i = 0; i < lines; i += kBatch) {
    typename Source::Loaded x[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) source.line(i + b, m, kWhole, x[b]);
    by_storage<typename Source::Stored>(source.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int k = 0; k < kTeamLanes; ++k)
          if (kWhole || source.has(i + b, k, m)) {
            const A value = source.template value<T>(x[b], k);
            acc[k] = i + b == 0 ? value : R::combine(acc[k], value);
          }
    });
  }
}

// Combines lanes j and j + h, one of which is in another thread. Returns the lower lane's value if the upper lane has none.
template <class R, class A> __device__ inline A join(A mine, A other, bool upper, bool both) {
  const A low = upper ? other : mine, high = upper ? mine : other;
  return both ? R::combine(low, high) : low;
}

// Combines the lanes of a team by halves. Thread 0 of the team gets the result. Lanes from m on have no values.
template <class R, bool kPacked, class A> __device__ inline A join_lanes(int m, A (&acc)[kTeamLanes]) {
  const int t = threadIdx.x % kTeam;
  int lane = t;  // the lane whose value this thread is left with, below 16
  A a;
  if constexpr (kPacked) {
    // Each thread keeps half of its lanes and gives the others away, which halves the number of shuffles.
    A two[2];
    const bool upper = t & 8;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const A other = shuffle_xor(upper ? acc[k] : acc[2 + k], 8);
      two[k] = join<R>(upper ? acc[2 + k] : acc[k], other, upper, 4 * (t & 7) + (upper ? 2 : 0) + k + 32 < m);
    }
    const bool upper_half = t & 4;
    lane = 4 * (t & 3) + (t >> 2 & 2) + (t >> 2 & 1);
    const A other = shuffle_xor(upper_half ? two[0] : two[1], 4);
    a = join<R>(upper_half ? two[1] : two[0], other, upper_half, lane + 16 < m);
  } else {
    if (t + 32 < m) acc[0] = R::combine(acc[0], acc[2]);
    if (t + 48 < m) acc[1] = R::combine(acc[1], acc[3]);
    a = t + 16 < m ? R::combine(acc[0], acc[1]) : acc[0];
  }
  constexpr int kMask[4] = {kPacked ? 2 : 8, kPacked ? 1 : 4, kPacked ? 8 : 2, kPacked ? 4 : 1};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int half = 8 >> step;
    a = join<R>(a, shuffle_xor(a, kMask[step]), t & kMask[step], (lane & (half - 1)) + half < m);
  }
  return a;
}

// Reduces a block of m rows with one team. All lanes of the warp must call it; m may be 0. Thread 0 of the team gets the result.
template <class R, class A, class Source> __device__ inline A fold_team(int m, const Source& source) {
  constexpr int kLines = int(kFoldBlock / kLanes), kBatch = kAhead<typename Source::Stored> / kTeamLanes;
  A acc[kTeamLanes] = {};
  if (m == kFoldBlock) add_lines<R, kBatch, true>(kLines, m, source, acc);
  else if (m <= kLanes) add_lines<R, 1, false>(1, m, source, acc);
  else add_lines<R, (kBatch < 4 ? kBatch : 4), false>((m + int(kLanes) - 1) / int(kLanes), m, source, acc);
  if constexpr (Source::kPacked) {  // the elements that do not fill a pack
    const int tail = m & ~3;
    if (tail < m && tail % int(kLanes) / 4 == int(threadIdx.x % kTeam)) {
#pragma unroll
      for (int k = 0; k < 3; ++k)
        if (tail + k < m) acc[k] = tail < kLanes ? source.one(tail + k) : R::combine(acc[k], source.one(tail + k));
    }
  }
  return join_lanes<R, Source::kPacked>(m, acc);
}

// ---- kernels

// Combines lanes 0 to n - 1 by halves, in one thread.
template <class R, int kHalf, class A, int kMost> __device__ inline void join_few(int n, A (&x)[kMost]) {
#pragma unroll
  for (int j = 0; j < kHalf; ++j)
    if (j + kHalf < n) x[j] = R::combine(x[j], x[j + kHalf]);
  if constexpr (kHalf > 1) join_few<R, kHalf / 2>(n, x);
}

// Reduces cells whose neighbouring rows lie closest together. If a cell has up to eight blocks of rows, as many teams of one block
// of threads reduce them, and the block of threads has room for kTeams / teams cells. Larger cells are reduced by several blocks of
// threads, the last of which combines their results.
template <class R, class C, class A, bool kPacked>
__global__ void __launch_bounds__(kRowThreads, 8) fold_along(const __grid_constant__ Folding f) {
  const int team = threadIdx.x / kTeam;
  const bool leads = threadIdx.x % kTeam == 0, alone = f.levels.blocks[0] <= kTeams;
  const int64_t unit = f.first_unit + blockIdx.x / f.blocks_per_unit, part = blockIdx.x % f.blocks_per_unit;
  const int64_t cell = alone ? unit * (kTeams / f.teams) + team / f.teams : unit;
  const int64_t block = alone ? team % f.teams : part * kTeams + team;
  const int m = cell < f.cells ? f.rows_of(0, block) : 0;
  const char* data = m > 0 ? f.data + f.outer.offset(cell) : f.data;
  const int64_t first = m > 0 ? block * kFoldBlock : 0;
  const std::conditional_t<kPacked, Packs<R, C, A>, Strided<R, C, A>> source{RowsFrom(data, first, f.reduced), f.dtype,
                                                                             f.mirrors};
  A a = fold_team<R, A>(m, source);
  if (!alone) {
    if (leads && m > 0) f.store(0, cell, block, 0, a);
    return f.climb(unit, part, kFoldBlock / kTeams, [&](int level, int64_t next) {
      if (threadIdx.x >= kWarp) return;
      const int rows = team == 0 ? f.rows_of(level, next) : 0;
      const A folded = fold_team<R, A>(rows, Fresh<A>{f.template partials<A>(level - 1, cell, next * kFoldBlock)});
      if (threadIdx.x == 0) f.store(level, cell, next, 0, folded);
    });
  }
  if (f.teams > 1) {
    __shared__ A side[kTeams];
    if (leads) side[team] = a;
    __syncthreads();
    A x[kTeams];
#pragma unroll
    for (int k = 0; k < kTeams; ++k)
      if (k < f.teams) x[k] = side[team / f.teams * f.teams + k];
    join_few<R, kTeams / 2>(int(f.levels.blocks[0]), x);
    a = x[0];
  }
  if (leads && block == 0 && m > 0) f.finish(cell, a);
}

// Reduces cells with few rows: each thread takes one cell.
template <class R, class C, class A> __global__ void __launch_bounds__(kThreads) fold_short(const __grid_constant__ Folding f) {
  const int64_t cell = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (cell >= f.cells) return;
  const RowsFrom rows(f.data + f.outer.offset(cell), 0, f.reduced);
  Raw<C> raw[kShortRows];
#pragma unroll
  for (int k = 0; k < kShortRows; ++k)
    if (k < f.rows) raw[k] = load_raw<C>(f.dtype, rows.at(k));
  A x[kShortRows];
  by_storage<C>(f.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
#pragma unroll
    for (int k = 0; k < kShortRows; ++k)
      if (k < f.rows) x[k] = mapped<R>(A(from_raw<C, T>(raw[k])), f.mirrors);
  });
  join_few<R, int(kShortRows) / 2>(int(f.rows), x);
  f.finish(cell, x[0]);
}

// Reduces cells if neighbouring cells lie closest together: a tile of thirty-two cells and a block of rows. Each warp takes four
// lanes of every cell. The lanes are numbered so that lanes that are combined are neighbours: number k is lane k with its six bits
// reversed.
constexpr int kTileCells = 32, kTileWarps = 16;

__device__ inline int lane_number(int k) { return int(__brev(unsigned(k)) >> 26); }

template <class R, class C, class A>
__global__ void __launch_bounds__(kTileCells* kTileWarps) fold_across(const __grid_constant__ Folding f) {
  constexpr int kDepth = int(kFoldBlock / kLanes), kBatch = kAhead<C> < kDepth ? kAhead<C> : kDepth;
  const int x = threadIdx.x % kTileCells, y = threadIdx.x / kTileCells;
  const int64_t unit = f.first_unit + blockIdx.x / f.blocks_per_unit, block = blockIdx.x % f.blocks_per_unit;
  const int64_t cell = unit * kTileCells + x;
  const int m = cell < f.cells ? f.rows_of(0, block) : 0;
  const RowsFrom rows(m > 0 ? f.data + f.outer.offset(cell) : f.data, block * kFoldBlock, f.reduced);
  __shared__ A side[kLanes][kTileCells];
#pragma unroll 1
  for (int number = y; number < kLanes; number += kTileWarps) {
    const int lane = lane_number(number);
    A a{};
#pragma unroll 1
    for (int i = 0; i < kDepth; i += kBatch) {
      Raw<C> raw[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (lane + (i + b) * int(kLanes) < m) raw[b] = load_raw<C>(f.dtype, rows.at(lane + (i + b) * int(kLanes)));
      by_storage<C>(f.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
          if (lane + (i + b) * int(kLanes) < m) {
            const A value = mapped<R>(A(from_raw<C, T>(raw[b])), f.mirrors);
            a = i + b == 0 ? value : R::combine(a, value);
          }
      });
    }
    side[number][x] = a;
  }
  for (int step = 1; step < kLanes; step *= 2) {
    __syncthreads();
    for (int number = 2 * step * y; number < kLanes; number += 2 * step * kTileWarps)
      if (lane_number(number + step) < m) side[number][x] = R::combine(side[number][x], side[number + step][x]);
  }
  if (y == 0 && m > 0) f.store(0, cell, block, 0, side[0][x]);
  f.climb(unit, block, kFoldBlock, [&](int level, int64_t next) {
    const int64_t own = unit * kTileCells + threadIdx.x / kTeam;
    const int rows = own < f.cells ? f.rows_of(level, next) : 0;
    const A folded =
        fold_team<R, A>(rows, Fresh<A>{f.template partials<A>(level - 1, own < f.cells ? own : 0, next * kFoldBlock)});
    if (threadIdx.x % kTeam == 0 && rows > 0) f.store(level, own, next, 0, folded);
  });
}
static_assert(kTileCells * kTileWarps / kTeam == kTileCells);

}  // namespace pb::cuda
