// Products of matrices: the parts that all kernels share. A product goes this way:
//
//   multiply()       gemm.cu                 leaves it to cuBLASLt or to product_tiny.cu, or asks choose() and fills in a Problem
//   choose()         choice.cpp              the size of tiles, and the slices of the contraction
//   launch_tiles()   gemm.cu                 chooses the Way and the End, and so the kernel
//   multiply_plain() gemm_plain.cuh          a block multiplies one tile, or one slice of it, in steps through shared memory,
//   multiply_cores() gemm_cores.cuh            without or with tensor cores
//   Exit::store()    here                    adds up the sums of groups of threads and of slices, and ends in finish()
//
// Hot kernels know the type of their numbers and how the product ends. What they decide at run time is uniform and outside the main
// loop.
#pragma once
#include "cuda/fold.cuh"
#include "cuda/gemm_parts.h"
#include "cuda/operand.cuh"
#include "families/activation_functors.h"
#include "families/matmul.h"
#include "families/order.h"

namespace pb::cuda {

// How a kernel without tensor cores reads factors. `generic` reads any dtype and layout, and rounds and pulls back if asked to. The
// others are:
//   direct  f32 copied straight to shared memory
//   pulled  f32 through registers, where a is pulled back
enum class Way : uint8_t { direct, pulled, generic };

// How a kernel ends, beyond storing the tile. `any` can do everything: what the others do, and tanh and sigmoid, which are hundreds
// of instructions that most products should not have to load.
//   layer     adds a bias; relu, which is one instruction per element
//   gradient  adds to the contents of out; sums the rows of a
enum class End : uint8_t { layer, gradient, any };

// result (m, n) = a (m, k) @ b (k, n), for every element of a batch.
struct Problem {
  int m, n;
  int64_t k, slice;  // the length of the contraction, and of a block's slice of it, which its groups of threads share evenly
  int slices;
  unsigned first;      // the number of the problem's first block in the launch
  Divider tiles;       // divides by the number of tiles of all results
  Divider tiles_each;  // divides by the number of tiles of one result
  Divider tiles_down;  // divides by the number of tiles from top to bottom of a result
  DType dtype;         // of the factors and the result
  int size;            // bytes of an element
  Reading reading_a, reading_b;
  kernels::Precision rounding;  // of float32 factors that do not go through tensor cores
  Factor a, b, y;
  Walk<2> batch;  // byte offsets of a result's factors, by position in the batch
  char* out;
  int64_t pitch;   // elements from row to row of the result; the results of a batch are m * pitch elements apart
  bool packs_out;  // rows of out are whole packs of four elements
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

// Where the factors of a result begin, in bytes. A batch rarely has more than one axis, so a loop is shorter than Walk::offsets().
struct Offsets {
  int64_t a = 0, b = 0;
};
__device__ inline Offsets offsets_of(const Walk<2>& batch, unsigned which) {
  Offsets at;
#pragma unroll 1
  for (int d = batch.ndim - 1; d >= 0; --d) {
    const unsigned rest = batch.length[d].divide(which), i = which - rest * batch.length[d].divisor;
    at.a += int64_t(i) * batch.stride[0][d], at.b += int64_t(i) * batch.stride[1][d];
    which = rest;
  }
  return at;
}

// The part of the work that a block computes.
struct TilePosition {
  int row, column;  // the tile's first row and column
  int slice;
  unsigned tile;
  int64_t begin, end;  // the slice's part of the contraction
  unsigned which;      // the result's position in the batch
  Offsets factors;
};

__device__ inline const Problem& problem_of_block(const Group& group) {
  return group.problems[group.count > 1 && blockIdx.x >= group.problems[1].first];
}

template <int kM, int kN> __device__ inline TilePosition position_of(const Problem& p) {
  TilePosition at;
  const unsigned block = blockIdx.x - p.first, slice = p.tiles.divide(block);
  at.slice = int(slice);
  at.tile = block - slice * p.tiles.divisor;
  at.which = p.tiles_each.divide(at.tile);
  const unsigned tile = at.tile - at.which * p.tiles_each.divisor;
  const unsigned across = p.tiles_down.divide(tile), down = tile - across * p.tiles_down.divisor;
  at.row = int(down) * kM, at.column = int(across) * kN;
  at.begin = at.slice * p.slice;
  at.end = at.begin + p.slice < p.k ? at.begin + p.slice : p.k;
  at.factors = offsets_of(p.batch, at.which);
  return at;
}

// ---- elements in the type C that products are computed in, stored as T. T is void if the dtype is known at run time only.

template <class T> __device__ inline int size_in_memory(const Problem& p) {
  if constexpr (std::is_void_v<T>) return p.size;
  else return int(sizeof(T));
}

// C is uint32_t for integers of at most 32 bits, and uint64_t for 64-bit integers modulo 2^64 and for bool, which is true if the
// sum is not 0.
template <class C, class T = void> __device__ inline C load_element(DType dtype, const char* p) {
  if constexpr (!std::is_void_v<T>) {
    return C(*reinterpret_cast<const T*>(p));
  } else if constexpr (std::is_same_v<C, float>) {
    return load_as<float>(dtype, p);
  } else if constexpr (std::is_same_v<C, double>) {
    return *reinterpret_cast<const double*>(p);
  } else if constexpr (std::is_same_v<C, uint64_t>) {
    return dtype == DType::b8 ? uint64_t(*reinterpret_cast<const bool*>(p)) : *reinterpret_cast<const uint64_t*>(p);
  } else {
    return uint32_t(load_as<int64_t>(dtype, p));
  }
}
template <class C, class T = void> __device__ inline void store_element(DType dtype, char* p, C x) {
  if constexpr (!std::is_void_v<T>) {
    *reinterpret_cast<T*>(p) = T(x);
  } else if constexpr (std::is_same_v<C, float>) {
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

// Four neighbouring elements in shared or working memory, loaded and stored 16 bytes at a time.
template <class C> struct __align__(16) Four {
  C v[4];
};
template <class C> __device__ inline Four<C> operator+(Four<C> x, const Four<C>& y) {
#pragma unroll
  for (int j = 0; j < 4; ++j) x.v[j] += y.v[j];
  return x;
}
template <class C> __device__ inline Four<C> load_past_cache(const Four<C>* p) {
  constexpr int kPieces = 4 * int(sizeof(C)) / 16;
  Four<C> four;
  uint4 piece[kPieces];
#pragma unroll
  for (int k = 0; k < kPieces; ++k) piece[k] = __ldcg(reinterpret_cast<const uint4*>(p) + k);
  memcpy(&four, piece, sizeof four);
  return four;
}
template <class C> __device__ inline C load_past_cache(const C* p) { return C(__ldcg(p)); }

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

// Returns the sum of the first kRun of `count` partial results, which are `step` apart. A thread has kRun loads under way.
template <int kRun, class V> __device__ inline V sum_of_run(const V* first, int64_t step, int64_t count) {
  return add_pairs<kRun>(int(count < kRun ? count : kRun), [&](int i) { return load_past_cache(first + i * step); });
}

// Returns the sum of `count` partial results. If there are more than kRun, the sums of runs replace the first results of the runs,
// and are added in the same way.
template <int kRun, class V> __device__ inline V add_partials(V* first, int64_t step, int count) {
  V sum;
#pragma unroll 1
  do {
    const bool is_last = count <= kRun;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kRun) {
      sum = sum_of_run<kRun>(first + begin * step, step, count - begin);
      if (!is_last) first[begin * step] = sum;
    }
    if (is_last) return sum;
    step *= kRun, count = (count + kRun - 1) / kRun;
  } while (true);
}

// ---- the end of a tile

// Completes elements (row, column) to (row, column + 3) of the result and stores them.
template <class C, class T, End kEnd>
__device__ inline void finish(const Problem& p, const TilePosition& at, int row, int column, Four<C> x) {
  if (row >= p.m || column >= p.n) return;
  const int count = p.n - column, size = size_in_memory<T>(p);
  char* const to = p.out + ((int64_t(at.which) * p.m + row) * p.pitch + column) * size;
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j < count) f(j);
  };
  if constexpr (std::is_floating_point_v<C>) {
    if (kEnd != End::layer && p.adds) each([&](int j) { x.v[j] += load_element<C, T>(p.dtype, to + j * size); });
    if (kEnd != End::gradient && p.bias) {
      const char* const bias = p.bias + column * p.bias_step;
      each([&](int j) { x.v[j] += load_element<C, T>(p.dtype, bias + j * p.bias_step); });
    }
    if constexpr (kEnd == End::layer) {
      if (p.activation) {
#pragma unroll
        for (int j = 0; j < 4; ++j) x.v[j] = relu_forward()(x.v[j]);
      }
    } else if constexpr (kEnd == End::any) {
      // The code for two elements runs twice: it is half as long, and two chains of multiply-adds keep a warp busy.
      if (p.activation)
        kernels::visit_activation(p.activation, [&](auto forward, auto) {
#pragma unroll 1
          for (int half = 0; half < 2; ++half) {
            const C first = forward(x.v[0]), second = forward(x.v[1]);
            x.v[0] = x.v[2], x.v[1] = x.v[3], x.v[2] = first, x.v[3] = second;
          }
        });
    }
  }
  if constexpr (std::is_same_v<C, float>) {
    if (p.packs_out) {
      if constexpr (std::is_void_v<T>) {
        store_four(p.dtype, to, 0, x.v);
      } else {
        Pack<T> pack;
#pragma unroll
        for (int j = 0; j < 4; ++j) pack.v[j] = T(x.v[j]);
        *reinterpret_cast<Pack<T>*>(to) = pack;
      }
      return;
    }
  }
  each([&](int j) { store_element<C, T>(p.dtype, to + j * size, x.v[j]); });
}

// Carries a tile from the registers of a block to memory, kRows rows at a time. Rows lie kPitch elements apart in shared memory,
// with a copy for each group of threads that had a share of the contraction, at most kCopies. T is the type of the result in
// memory, or void.
template <class C, class T, End kEnd, int kM, int kN, int kRows, int kCopies, int kThreadsOf> struct Exit {
  static constexpr int kPitch = kN + 16 / int(sizeof(C)), kPart = kRows * kPitch, kFours = kN / 4, kParts = kM / kRows;
  // The largest tile's own sums, which stay in registers until the end, leave room for four partial results of slices.
  static constexpr int kRun = kM * kN < 128 * 128 ? 8 : 4;
  static constexpr bool kSums = std::is_floating_point_v<C> && (kEnd == End::gradient || kEnd == End::any);

  // put(part): writes the rows of that part from registers to shared memory. Without slices, the parts are stored one by one. With
  // slices, they go to working memory first, and the block that arrives last of its tile makes a second pass: it adds up the
  // slices of each four elements and stores them. All threads must call it.
  template <class Put> __device__ static void store(const Problem& p, const TilePosition& at, const C* shared, int copies,
                                                    Put&& put) {
    const bool sliced = p.slices > 1;
    const int64_t step = int64_t(p.tiles.divisor) * (kM * kFours);  // fours from slice to slice
    Four<C>* const partial = reinterpret_cast<Four<C>*>(p.partial) + int64_t(at.tile) * (kM * kFours);
#pragma unroll 1
    for (int pass = 0; pass < 2 * kParts; ++pass) {
      const bool again = pass >= kParts;
      if (pass == kParts && !(sliced && last_to_arrive(p.arrivals + at.tile, unsigned(p.slices)))) return;
      const int part = again ? pass - kParts : pass;
      if (!again) {
        __syncthreads();
        put(part);
        __syncthreads();
      }
#pragma unroll 1
      for (unsigned q = threadIdx.x; q < kRows * kFours; q += kThreadsOf) {
        const int row = int(q / kFours), column = int(4 * (q % kFours));
        Four<C>* const own = partial + part * (kRows * kFours) + q;
        Four<C> x;
        if (again) {
          x = add_partials<kRun>(own, step, p.slices);
        } else {
          const C* const from = shared + row * kPitch + column;
          x = add_pairs<kCopies>(copies, [&](int copy) { return *reinterpret_cast<const Four<C>*>(from + copy * kPart); });
        }
        if (sliced && !again) own[at.slice * step] = x;
        else finish<C, T, kEnd>(p, at, at.row + part * kRows + row, at.column + column, x);
      }
    }
    if constexpr (kSums) {
      if (!p.sums || at.column != 0) return;
      for (int row = at.row + int(threadIdx.x); row < at.row + kM && row < p.m; row += kThreadsOf)
        store_element<C, T>(p.dtype, p.sums + int64_t(row) * size_in_memory<T>(p),
                            add_partials<kRun>(reinterpret_cast<C*>(p.partial_sums) + row, p.m, p.slices));
    }
  }

  // Stores the sum of a row of a over this slice. It must come before store().
  __device__ static void put_sum(const Problem& p, const TilePosition& at, int row, C sum) {
    if (at.row + row >= p.m) return;
    if (p.slices > 1) reinterpret_cast<C*>(p.partial_sums)[int64_t(at.slice) * p.m + at.row + row] = sum;
    else store_element<C, T>(p.dtype, p.sums + int64_t(at.row + row) * size_in_memory<T>(p), sum);
  }
};

// Kernels are instantiated in sources that CMake generates, because they take long to compile. Each function returns the launcher
// of a tile, by its number in the set.
using Launcher = void (*)(const Group&, unsigned blocks);

// Without tensor cores, for a computing dtype: f32, f64, i32 or i64, where signed and unsigned integers give the same bits. Only
// f32 has ways other than Way::generic.
template <DType kComputed> Launcher plain_kernel(int tile, Way way, End end);

// On tensor cores. kRounds: the factors are float32 and are rounded to the format Kind; otherwise they already have that format.
struct Tf32;
struct Bf16;
struct F16;
template <class Kind, bool kRounds> Launcher core_kernel(int tile, End end);

}  // namespace pb::cuda
