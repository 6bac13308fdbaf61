// Products of matrices: what the kernels of all kinds share. A block computes one tile of one result, or a slice of the
// contraction of that tile; of slices the last block folds the sums in the order of the slices.
#pragma once
#include "cuda/fold.cuh"
#include "cuda/gemm.h"
#include "cuda/operand.cuh"
#include "families/activations.h"
#include "families/matmul.h"

namespace pb::cuda {

// Along which axis neighbours lie. In packs: they begin at a multiple of a pack, and their number is one.
enum class Reading : uint8_t { depth, outer, depth_packs, outer_packs };

// result (m, n) = a (m, k) @ b (k, n), for every element of the batch.
struct Problem {
  int m, n;
  int64_t k, slice;       // the contraction, and a block's share of it
  int tiles_m, slices;    // tiles down a result; slices of the contraction
  unsigned tiles, first;  // tiles of all results; the first block
  DType dtype;            // of the factors and the result
  int size;               // of an element
  Reading reading_a, reading_b;
  kernels::Precision rounding;  // of float32 factors, where no tensor core does it
  Factor a, b, y;
  Walk<2> batch;  // where the factors of a result of the batch begin
  char* out;
  int64_t pitch;  // elements from a row of the result to the next; results of the batch are m * pitch apart
  const char* bias;
  int64_t bias_step;
  int activation;      // after the bias
  bool adds;           // to what out holds
  int pulled;          // before anything else: see Product
  char* sums;          // of a's rows, one each
  char* partial;       // a tile's sums for every slice
  char* partial_sums;  // m of them for every slice
  unsigned* arrivals;  // of the slices of a tile
};

// The problems that share a launch.
struct Group {
  Problem problems[2];
  int count;
};

// What a block is to do.
struct TilePosition {
  int row, column;  // of the tile
  int slice;
  unsigned tile;
  int64_t begin, end;  // of the contraction
  int64_t a, b, out;   // where the result's factors begin, in bytes, and the result, in elements
};

template <int kM, int kN> __device__ inline TilePosition position_of(const Problem& p) {
  TilePosition at;
  const unsigned block = blockIdx.x - p.first, across = (unsigned(p.n) + kN - 1) / kN, each = p.tiles_m * (across ? across : 1);
  at.slice = int(block / p.tiles);
  at.tile = block % p.tiles;
  const unsigned which = at.tile / each, tile = at.tile % each;
  at.row = int(tile % unsigned(p.tiles_m)) * kM, at.column = int(tile / unsigned(p.tiles_m)) * kN;
  at.begin = at.slice * p.slice;
  at.end = at.begin + p.slice < p.k ? at.begin + p.slice : p.k;
  int64_t offset[2];
  p.batch.offsets(which, offset);
  at.a = offset[0], at.b = offset[1], at.out = int64_t(which) * p.m * p.pitch;
  return at;
}

// ---- elements in the type that is computed with

// uint64_t: 64-bit integers modulo 2^64, and bool as whether a sum is 0. uint32_t: all smaller integers.
template <class C> __device__ inline C load_element(DType dtype, const char* p) {
  if constexpr (std::is_same_v<C, float>) {
    return load_as<float>(dtype, p);
  } else if constexpr (std::is_same_v<C, double>) {
    return *reinterpret_cast<const double*>(p);
  } else if constexpr (std::is_same_v<C, uint64_t>) {
    return dtype == DType::b8 ? uint64_t(*reinterpret_cast<const bool*>(p)) : *reinterpret_cast<const uint64_t*>(p);
  } else {
    return uint32_t(load_as<int64_t>(dtype, p));
  }
}
template <class C> __device__ inline void store_element(DType dtype, char* p, C x) {
  if constexpr (std::is_same_v<C, float>) {
    store_as<float>(dtype, p, x);
  } else if constexpr (std::is_same_v<C, double>) {
    *reinterpret_cast<double*>(p) = x;
  } else if constexpr (std::is_same_v<C, uint64_t>) {
    if (dtype == DType::b8) *reinterpret_cast<bool*>(p) = x != 0;
    else *reinterpret_cast<uint64_t*>(p) = x;
  } else {
    store_as<int64_t>(dtype, p, int64_t(x));
  }
}

__device__ inline float round_to(kernels::Precision precision, float x) {
  if (precision == kernels::Precision::bf16) return float(bfloat16(x));
  if (precision == kernels::Precision::f16) return float(float16(x));
  return x;
}

// Four neighbours in shared memory or in working memory: loads and stores of 16 bytes.
template <class C> struct __align__(16) Four {
  C v[4];
};
template <class C> __device__ inline Four<C> load_past_cache(const C* p) {
  constexpr int kPieces = 4 * int(sizeof(C)) / 16;
  Four<C> four;
  uint4 piece[kPieces];
#pragma unroll
  for (int k = 0; k < kPieces; ++k) piece[k] = __ldcg(reinterpret_cast<const uint4*>(p) + k);
  memcpy(&four, piece, sizeof four);
  return four;
}

// ---- sums of a's rows

// A running sum with the error of each addition beside it (Knuth's two-sum); plain where C is not float.
template <class C> struct Sum {
  C value = 0, error = 0;
  __device__ void add(C x) {
    const C total = value + x;
    if constexpr (std::is_same_v<C, float>) {
      const C back = total - value;
      error += (value - (total - back)) + (x - back);
    }
    value = total;
  }
  __device__ C total() const { return value + error; }
};
constexpr int64_t additions_of_sum(DType dtype) {
  return dtype == DType::f64 ? 1 : 7;
}  // for each number; and one for the total

// ---- the end of a tile

// What is there already or bias and activation, and the store of elements (row, column…column + 3) of the tile's result.
template <class C> __device__ inline void finish(const Problem& p, const TilePosition& at, int row, int column, Four<C> x) {
  if (row >= p.m || column >= p.n) return;
  const int count = p.n - column < 4 ? p.n - column : 4, size = p.size;
  char* const to = p.out + (at.out + row * p.pitch + column) * size;
  if constexpr (std::is_floating_point_v<C>) {
    if (p.adds) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (j < count) x.v[j] += load_element<C>(p.dtype, to + j * size);
    }
    if (p.bias) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (j < count) x.v[j] += load_element<C>(p.dtype, p.bias + (column + j) * p.bias_step);
    }
    if (p.activation)
      kernels::visit_activation(p.activation, [&](auto forward, auto) {
#pragma unroll
        for (int j = 0; j < 4; ++j) x.v[j] = forward(x.v[j]);
      });
  }
  if constexpr (std::is_same_v<C, float>) {
    if (count == 4 && reinterpret_cast<uintptr_t>(to) % unsigned(4 * size) == 0) return store_four(p.dtype, to, 0, x.v);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (j < count) store_element<C>(p.dtype, to + j * size, x.v[j]);
}

// The tile's way out, in parts of kRows rows that lie in shared memory, kPitch elements apart, once for each of kCopies groups of
// threads that had a share of the contraction.
template <class C, int kM, int kN, int kRows, int kCopies, int kThreadsOf> struct Exit {
  static constexpr int kPitch = kN + 16 / int(sizeof(C)), kPart = kRows * kPitch, kFours = kN / 4;

  // Called by all threads, between barriers.
  __device__ static void part(const Problem& p, const TilePosition& at, const C* shared, int first) {
#pragma unroll 1
    for (int q = int(threadIdx.x); q < kRows * kFours; q += kThreadsOf) {
      const int row = q / kFours, column = 4 * (q % kFours);
      Four<C> x = *reinterpret_cast<const Four<C>*>(shared + row * kPitch + column);
#pragma unroll
      for (int copy = 1; copy < kCopies; ++copy) {
        const Four<C> more = *reinterpret_cast<const Four<C>*>(shared + copy * kPart + row * kPitch + column);
#pragma unroll
        for (int j = 0; j < 4; ++j) x.v[j] += more.v[j];
      }
      if (p.slices > 1) *reinterpret_cast<Four<C>*>(slice_of(p, at, at.slice) + (first + row) * kN + column) = x;
      else finish(p, at, at.row + first + row, at.column + column, x);
    }
  }

  // After all parts. The last slice of a tile to arrive here folds all of them, in their order.
  __device__ static void fold(const Problem& p, const TilePosition& at) {
    if (p.slices == 1 || !last_to_arrive(p.arrivals + at.tile, unsigned(p.slices))) return;
#pragma unroll 1
    for (int q = int(threadIdx.x); q < kM * kFours; q += kThreadsOf) {
      const int row = q / kFours, column = 4 * (q % kFours);
      Four<C> x = load_past_cache(slice_of(p, at, 0) + row * kN + column);
#pragma unroll 4
      for (int slice = 1; slice < p.slices; ++slice) {
        const Four<C> more = load_past_cache(slice_of(p, at, slice) + row * kN + column);
#pragma unroll
        for (int j = 0; j < 4; ++j) x.v[j] += more.v[j];
      }
      finish(p, at, at.row + row, at.column + column, x);
    }
    if constexpr (std::is_floating_point_v<C>) {
      if (!p.sums || at.column != 0) return;
      for (int row = at.row + int(threadIdx.x); row < at.row + kM && row < p.m; row += kThreadsOf) {
        Sum<C> sum;
        for (int slice = 0; slice < p.slices; ++slice)
          sum.add(__ldcg(reinterpret_cast<const C*>(p.partial_sums) + int64_t(slice) * p.m + row));
        store_element<C>(p.dtype, p.sums + int64_t(row) * p.size, sum.total());
      }
    }
  }

  // The sum of a row of a within this slice.
  __device__ static void put_sum(const Problem& p, const TilePosition& at, int row, C sum) {
    if (at.row + row >= p.m) return;
    if (p.slices > 1) reinterpret_cast<C*>(p.partial_sums)[int64_t(at.slice) * p.m + at.row + row] = sum;
    else store_element<C>(p.dtype, p.sums + int64_t(at.row + row) * p.size, sum);
  }

  __device__ static C* slice_of(const Problem& p, const TilePosition& at, int slice) {
    return reinterpret_cast<C*>(p.partial) + (int64_t(slice) * p.tiles + at.tile) * (kM * kN);
  }
};

// ---- the tables of kernels, smallest tiles first

// A kernel for tiles of one size, with what the choice among them goes by: cycles that a step of the contraction takes a block
// that is alone on its multiprocessor, and cycles of a multiprocessor's whole throughput that it takes.
struct Tile {
  void (*launch)(const Group&, unsigned blocks);
  int m, n, depth, groups;  // groups of threads that share the contraction
  bool sums;                // of a's rows, too
  float latency, throughput;
};
struct Tiles {
  const Tile* tiles;
  int count;
};

// Both are instantiated in sources that CMake generates, because they take long to compile.
//
// The kernels without tensor cores, by the dtype they compute in: f32, f64, i32 or i64, where signs do not matter. staged: the
// factors pass through registers, which convert, round and pull back; otherwise they have that dtype and are copied straight to
// shared memory.
template <DType kComputed> Tiles plain_tiles(bool staged);

// The kernels on tensor cores. kRounds: the factors are float32 and are rounded to the format Kind; otherwise they have it.
struct Tf32;
struct Bf16;
struct F16;
template <class Kind, bool kRounds> Tiles core_tiles();

}  // namespace pb::cuda
