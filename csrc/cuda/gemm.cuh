// Products of matrices: the parts that all kernels share. A block computes one tile of one result, or one slice of that tile's
// contraction. The last of a tile's slices to arrive adds up the sums of all slices, in their order.
#pragma once
#include "cuda/fold.cuh"
#include "cuda/gemm.h"
#include "cuda/operand.cuh"
#include "families/activations.h"
#include "families/matmul.h"

namespace pb::cuda {

// The axis of a factor whose elements lie closest together. The *_packs readings also guarantee that runs of contiguous elements
// begin at a multiple of a pack and are a multiple of a pack long.
enum class Reading : uint8_t { depth, outer, depth_packs, outer_packs };

// result (m, n) = a (m, k) @ b (k, n), for every element of a batch.
struct Problem {
  int m, n;
  int64_t k, slice;       // the length of the contraction, and of a block's slice of it
  int tiles_m, slices;    // tiles from top to bottom of a result; slices of the contraction
  unsigned tiles, first;  // tiles of all results; the number of the problem's first block in the launch
  DType dtype;            // of the factors and the result
  int size;               // bytes of an element
  Reading reading_a, reading_b;
  kernels::Precision rounding;  // of float32 factors that do not go through tensor cores
  Factor a, b, y;
  Walk<2> batch;  // byte offsets of a result's factors, by position in the batch
  char* out;
  int64_t pitch;  // elements from row to row of the result; the results of a batch are m * pitch elements apart
  const char* bias;
  int64_t bias_step;
  int activation;      // applied after the bias
  bool adds;           // true if the product is added to the contents of out
  int pulled;          // the activation whose pullback is applied to a's elements first, see Product
  char* sums;          // receives the sum of each row of a; null if not needed
  char* partial;       // working memory: the sums of each tile for every slice
  char* partial_sums;  // working memory: m row sums for every slice
  unsigned* arrivals;  // counts the slices of each tile that have arrived
};

// The problems that share a launch.
struct Group {
  Problem problems[2];
  int count;
};

// The part of the work that a block computes.
struct TilePosition {
  int row, column;  // the tile's first row and column
  int slice;
  unsigned tile;
  int64_t begin, end;  // the slice's part of the contraction
  int64_t a, b, out;   // where the result's factors begin, in bytes, and where the result begins, in elements
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

// ---- elements in the type that products are computed in

// C is uint32_t for integers of at most 32 bits, and uint64_t for 64-bit integers modulo 2^64 and for bool, which is true if the
// sum is not 0.
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

// Four neighbouring elements in shared or working memory, loaded and stored 16 bytes at a time.
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

// A running sum that also accumulates the rounding error of each addition (Knuth's two-sum). Types other than float are summed
// without compensation.
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
// Returns the number of additions that a Sum of this dtype makes for each number. total() takes one more.
constexpr int64_t additions_of_sum(DType dtype) { return dtype == DType::f64 ? 1 : 7; }

// ---- the end of a tile

// Completes elements (row, column) to (row, column + 3) of the result and stores them: adds the contents of `out` if the product
// accumulates, otherwise adds the bias and applies the activation.
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

// Stores a tile in parts of kRows rows. A part lies in shared memory with rows kPitch elements apart. There are kCopies copies of
// it, one for each group of threads that had a share of the contraction.
template <class C, int kM, int kN, int kRows, int kCopies, int kThreadsOf> struct Exit {
  static constexpr int kPitch = kN + 16 / int(sizeof(C)), kPart = kRows * kPitch, kFours = kN / 4;

  // Adds up the copies of the part that begins at row `first` of the tile, and stores it. All threads must call it, between
  // barriers.
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

  // To be called after all parts. The last slice of a tile to arrive adds up the sums of all slices, in their order.
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

  // Stores the sum of a row of a over this slice.
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

// A kernel for tiles of one size, with its cost per element of the contraction: `latency` in cycles for a block that is alone on
// its multiprocessor, and `throughput` in cycles of a fully occupied multiprocessor.
struct Tile {
  void (*launch)(const Group&, unsigned blocks);
  int m, n, depth, groups;  // groups: how many groups of threads share the contraction
  bool sums;                // true if the kernel can also sum the rows of a
  float latency, throughput;
};
struct Tiles {
  const Tile* tiles;
  int count;
};

// Both functions are instantiated in sources that CMake generates, because they take long to compile.
//
// Returns the kernels without tensor cores for a computing dtype: f32, f64, i32 or i64, where signed and unsigned integers give the
// same bits. staged: the factors pass through registers, where they are converted, rounded and pulled back. Otherwise the factors
// have the computing dtype and are copied straight to shared memory.
template <DType kComputed> Tiles plain_tiles(bool staged);

// Returns the kernels for tensor cores. kRounds: the factors are float32 and are rounded to the format Kind; otherwise they already
// have that format.
struct Tf32;
struct Bf16;
struct F16;
template <class Kind, bool kRounds> Tiles core_tiles();

}  // namespace pb::cuda
