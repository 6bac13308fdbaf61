// Products of matrices: the parts that all kernels share. A block computes one tile of one result, or one slice of that tile's
// contraction. The last of a tile's slices to arrive adds up the sums of all slices, in pairs of neighbours.
#pragma once
#include "cuda/fold.cuh"
#include "cuda/gemm.h"
#include "cuda/operand.cuh"
#include "families/activations.h"
#include "families/matmul.h"
#include "families/order.h"

namespace pb::cuda {

// The axis of a factor whose elements lie closest together. The *_packs readings also guarantee that runs of contiguous elements
// begin at a multiple of a pack and are a multiple of a pack long.
enum class Reading : uint8_t { depth, outer, depth_packs, outer_packs };

// result (m, n) = a (m, k) @ b (k, n), for every element of a batch.
struct Problem {
  int m, n;
  int64_t k, slice;     // the length of the contraction, and of a block's slice of it, which its groups of threads share evenly
  int tiles_m, slices;  // tiles from top to bottom of a result; slices of the contraction
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
template <class C> __device__ inline Four<C> operator+(Four<C> x, const Four<C>& y) {
#pragma unroll
  for (int j = 0; j < 4; ++j) x.v[j] += y.v[j];
  return x;
}
template <class C> __device__ inline Four<C> load_past_cache(const C* p) {
  constexpr int kPieces = 4 * int(sizeof(C)) / 16;
  Four<C> four;
  uint4 piece[kPieces];
#pragma unroll
  for (int k = 0; k < kPieces; ++k) piece[k] = __ldcg(reinterpret_cast<const uint4*>(p) + k);
  memcpy(&four, piece, sizeof four);
  return four;
}

// ---- sums of partial results, in pairs of neighbours (rule 3 of families/order.h)

// Returns the sum of load(0) to load(count - 1). count must be from 1 to kMost, which is a power of two.
template <int kMost, class Load> __device__ inline auto add_pairs(int count, Load&& load) {
  decltype(load(0)) x[kMost] = {load(0)};
#pragma unroll
  for (int i = 1; i < kMost; ++i)
    if (i < count) x[i] = load(i);
#pragma unroll
  for (int apart = 1; apart < kMost; apart *= 2)
#pragma unroll
    for (int i = 0; i + apart < kMost; i += 2 * apart)
      if (i + apart < count) x[i] = x[i] + x[i + apart];
  return x[0];
}

// Some of the partial results in working memory: `count` of them, from `first` on, each `apart` after the one before it.
struct Run {
  static constexpr int kMost = 8;  // a thread has this many loads under way
  int64_t first, apart;
  int count;
  bool is_last;  // true if their sum is the sum of all partial results; otherwise it must replace the first of them
};

// Adds up `partials` partial results of `elements` elements each: calls add(element, run) for runs of neighbours, then for runs of
// their sums, and so on. All threads of a block must call it.
template <int kThreadsOf, class Add> __device__ inline void add_runs(int64_t partials, int elements, Add&& add) {
  for (int64_t apart = 1; apart < partials; apart *= Run::kMost) {
    const int64_t length = apart * Run::kMost, runs = (partials + length - 1) / length;
#pragma unroll 1
    for (int64_t q = threadIdx.x; q < runs * elements; q += kThreadsOf) {
      const int64_t first = q / elements * length, count = (partials - first + apart - 1) / apart;
      add(int(q % elements), Run{first, apart, int(count < Run::kMost ? count : Run::kMost), runs == 1});
    }
    __syncthreads();
  }
}

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

// Stores a tile in parts of kRows rows. A part lies in shared memory with rows kPitch elements apart. There is a copy of it for each
// group of threads that had a share of the contraction, at most kCopies.
template <class C, int kM, int kN, int kRows, int kCopies, int kThreadsOf> struct Exit {
  static constexpr int kPitch = kN + 16 / int(sizeof(C)), kPart = kRows * kPitch, kFours = kN / 4;

  // Adds up the copies of the part that begins at row `first` of the tile, and stores it. All threads must call it, between
  // barriers.
  __device__ static void part(const Problem& p, const TilePosition& at, const C* shared, int first, int copies = 1) {
#pragma unroll 1
    for (int q = int(threadIdx.x); q < kRows * kFours; q += kThreadsOf) {
      const int row = q / kFours, column = 4 * (q % kFours);
      const C* const from = shared + row * kPitch + column;
      const Four<C> x =
          add_pairs<kCopies>(copies, [&](int copy) { return *reinterpret_cast<const Four<C>*>(from + copy * kPart); });
      if (p.slices > 1) *reinterpret_cast<Four<C>*>(slice_of(p, at, at.slice) + (first + row) * kN + column) = x;
      else finish(p, at, at.row + first + row, at.column + column, x);
    }
  }

  // To be called after all parts. The last slice of a tile to arrive adds up the sums of all slices.
  __device__ static void fold(const Problem& p, const TilePosition& at) {
    if (p.slices == 1 || !last_to_arrive(p.arrivals + at.tile, unsigned(p.slices))) return;
    add_runs<kThreadsOf>(p.slices, kM * kFours, [&](int q, const Run& run) {
      const int row = q / kFours, column = 4 * (q % kFours);
      const auto place = [&](int i) { return slice_of(p, at, run.first + i * run.apart) + row * kN + column; };
      const Four<C> x = add_pairs<Run::kMost>(run.count, [&](int i) { return load_past_cache(place(i)); });
      if (run.is_last) finish(p, at, at.row + row, at.column + column, x);
      else *reinterpret_cast<Four<C>*>(place(0)) = x;
    });
    if constexpr (std::is_floating_point_v<C>) {
      if (!p.sums || at.column != 0) return;
      add_runs<kThreadsOf>(p.slices, kM, [&](int row, const Run& run) {
        if (at.row + row >= p.m) return;
        const auto place = [&](int i) { return partial_sum(p, at, run.first + i * run.apart, row); };
        const C sum = add_pairs<Run::kMost>(run.count, [&](int i) { return C(__ldcg(place(i))); });
        if (run.is_last) store_element<C>(p.dtype, p.sums + int64_t(at.row + row) * p.size, sum);
        else *place(0) = sum;
      });
    }
  }

  // Stores the sum of a row of a over this slice.
  __device__ static void put_sum(const Problem& p, const TilePosition& at, int row, C sum) {
    if (at.row + row >= p.m) return;
    if (p.slices > 1) *partial_sum(p, at, at.slice, row) = sum;
    else store_element<C>(p.dtype, p.sums + int64_t(at.row + row) * p.size, sum);
  }

  __device__ static C* slice_of(const Problem& p, const TilePosition& at, int64_t slice) {
    return reinterpret_cast<C*>(p.partial) + (slice * p.tiles + at.tile) * (kM * kN);
  }
  __device__ static C* partial_sum(const Problem& p, const TilePosition& at, int64_t slice, int row) {
    return reinterpret_cast<C*>(p.partial_sums) + slice * p.m + at.row + row;
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
