// Reductions of several columns over their rows. Each thread has lanes of neighbouring columns and combines up to 64 rows in order.
// In narrow matrices a line of lanes spans several neighbouring rows, see kernels::cut.
#pragma once
#include "cuda/reduce_matrix.cuh"

namespace pb::cuda {

using kernels::kColumnDepth;

constexpr unsigned kColumnThreads = 128;

// The lines of a block of rows. Line i is row i of the columns, or in a narrow matrix the `groups` rows from row i * groups on.
// This thread has kEach lanes of each line.
template <class R, class C, class A> struct PackedLines {
  using Stored = C;
  using Loaded = RawPack<C>;
  const char* data;  // this thread's part of the first line
  DType dtype;
  int item;
  int64_t stride;  // bytes
  bool mirrors;

  __device__ void line(int i, Loaded& x) const { x = load_raw_pack<C>(dtype, data + i * stride); }
  template <class T> __device__ A value(const Loaded& x, int k) const { return mapped<R>(A(from_raw<C, T>(x, k)), mirrors); }
  __device__ A one(int i, int k) const { return mapped<R>(A(load_as<C>(dtype, data + i * stride + k * item)), mirrors); }
};

template <class R, class C, class A> struct StridedLines {
  using Stored = C;
  using Loaded = Raw<C>;
  RowsFrom rows;
  DType dtype;
  int groups;
  bool mirrors;

  __device__ void line(int i, Loaded& x) const { x = load_raw<C>(dtype, rows.at(i * groups)); }
  template <class T> __device__ A value(Loaded x, int) const { return mapped<R>(A(from_raw<C, T>(x)), mirrors); }
  __device__ A one(int i, int) const {
    A a;
    by_storage<C>(dtype,
                  [&](auto tag) { a = value<typename decltype(tag)::type>(load_raw<C>(dtype, rows.at(i * groups)), 0); });
    return a;
  }
};

template <class A, int kEach> struct FreshLines {
  using Stored = int64_t;  // a type that is not converted
  struct Loaded {
    A v[kEach];
  };
  const A* data;
  int64_t lanes;
  DType dtype = DType::i64;

  __device__ void line(int i, Loaded& x) const {
#pragma unroll
    for (int k = 0; k < kEach; ++k) x.v[k] = one(i, k);
  }
  template <class T> __device__ A value(const Loaded& x, int k) const { return x.v[k]; }
  __device__ A one(int i, int k) const { return read_fresh(data + i * lanes + k); }
};

// Combines a thread's lanes over `lines` lines. One more line follows, of which only lanes below `rest` exist.
template <class R, int kBatch, int kEach, class A, class Lines>
__device__ inline void add_down(int lines, int64_t lane, int64_t rest, const Lines& source, A (&acc)[kEach]) {
#pragma unroll 1
  for (int i = 0; i < lines; i += kBatch) {
    typename Lines::Loaded x[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (i + b < lines) source.line(i + b, x[b]);
    by_storage<typename Lines::Stored>(source.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (i + b < lines)
#pragma unroll
          for (int k = 0; k < kEach; ++k) {
            const A value = source.template value<T>(x[b], k);
            acc[k] = i + b == 0 ? value : R::combine(acc[k], value);
          }
    });
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    if (lane + k < rest) acc[k] = lines == 0 ? source.one(0, k) : R::combine(acc[k], source.one(lines, k));
}

// A block of threads reduces a tile of columns and `teams` blocks of rows. Its first team also reduces the results of the level
// before. kEach is the number of lanes per thread: 4, read as packs, or 1.
template <class R, class C, class A, int kEach>
__global__ void __launch_bounds__(kColumnThreads, 5) fold_columns(const __grid_constant__ Folding f) {
  constexpr int kBatch = kAhead<C> / kEach;
  const int across = int(blockDim.x) / f.teams, x = int(threadIdx.x) % across, team = int(threadIdx.x) / across;
  const int groups = int(f.levels.groups);
  const int64_t unit = f.first_unit + blockIdx.x / f.blocks_per_unit, part = blockIdx.x % f.blocks_per_unit;
  const int64_t cell = unit / f.tiles, lanes = groups * f.width, lane = (unit % f.tiles * across + x) * kEach;
  const int64_t block = part * f.teams + team;

  __shared__ A side[kColumnThreads * kEach];
  // Reduces m rows of a block, and stores the results as block `at` of the level.
  const auto fold = [&](int m, int level, int64_t at, const auto& source) {
    A acc[kEach] = {};
    const int lines = m / groups;
    if (lane < lanes) add_down<R, kBatch>(lines, lane, (m - lines * groups) * f.width, source, acc);
    if (groups > 1) {
      __syncthreads();  // waits until the previous results have been read
      A* own = side + team * across * kEach;
#pragma unroll
      for (int k = 0; k < kEach; ++k) own[lane + k] = acc[k];
      for (int half = int(lanes) / 2; half >= int(f.width); half /= 2) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kEach; ++k)
          if (lane + k < half && lane + k + half < m * f.width) own[lane + k] = R::combine(own[lane + k], own[lane + k + half]);
      }
#pragma unroll
      for (int k = 0; k < kEach; ++k) acc[k] = own[lane + k];
    }
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (m > 0 && lane + k < f.width) f.store(level, cell, at, lane + k, acc[k]);
  };

  const int m = f.rows_of(0, block);
  const int64_t first = block * f.levels.block;
  const char* data = f.data + f.outer.offset(cell);
  if constexpr (kEach == 4) {
    const int64_t row = f.reduced.along, stride = groups > 1 ? lanes * f.item : row;
    fold(m, 0, block, PackedLines<R, C, A>{data + first * row + lane * f.item, f.dtype, f.item, stride, f.mirrors});
  } else {
    const int64_t row = groups > 1 ? lane / f.width : 0;
    if (lane < lanes) data += f.inner.offset(lane - row * f.width);
    fold(m, 0, block, StridedLines<R, C, A>{RowsFrom(data, first + row, f.reduced), f.dtype, groups, f.mirrors});
  }
  f.climb(unit, part, f.levels.block / f.teams, [&](int level, int64_t next) {
    const A* from = f.template partials<A>(level - 1, cell, next * f.levels.block) + lane;
    fold(team == 0 ? f.rows_of(level, next) : 0, level, next, FreshLines<A, kEach>{from, lanes});
  });
}

}  // namespace pb::cuda
