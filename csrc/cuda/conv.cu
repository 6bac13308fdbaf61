// Convolutions as products (conv.h). A block of threads computes a tile of the result. It brings kConvStep steps of both factors into
// shared memory at a time: the weights, or g, as they are, and the source element by element, with zeros for its padding. Each element
// of the result is added up by one thread, in the order of families/order.h; a contraction of more than four blocks is cut into
// slices, whose sums a second kernel combines.
#include "cuda/conv.h"

#include "cuda/multiply_add.cuh"
#include "cuda/operand.cuh"

namespace pb::cuda {
namespace {

constexpr int kLanes = 16;  // threads along each side of a tile

// What the kernels get.
struct Gather {
  ConvGemm p;
  DType dtype;
  kernels::Precision rounding;
  Divider n[2], k[2];
  uint32_t tiles_m, tiles_n, slices;
  void* sums;  // of the slices: (slice, group, m, n); null if there is one slice
};

struct Place {
  int64_t first, down, across;
};
__device__ __forceinline__ Place place_of(const Divider (&by)[2], uint32_t i) {
  const uint32_t line = by[1].divide(i), first = by[0].divide(line);
  return {first, line - first * by[0].divisor, i - line * by[1].divisor};
}

// Returns a factor, rounded to the precision of this thread's products.
template <class C> __device__ __forceinline__ C load_factor(const Gather& g, const char* p) {
  const C x = load_as<C>(g.dtype, p);
  if constexpr (std::is_same_v<C, float>) return round_to(g.rounding, x);
  else return x;
}

template <class C> __device__ __forceinline__ void store_result(const Gather& g, int64_t group, int64_t m, uint32_t n, C sum) {
  const ConvGemm& p = g.p;
  const Place at = place_of(g.n, n);
  if (p.bias) sum = sum + load_as<C>(g.dtype, p.bias + (group * p.m + m) * p.bias_step);
  char* out =
      p.out + group * p.out_group + m * p.out_row + at.first * p.out_n[0] + at.down * p.out_n[1] + at.across * p.out_n[2];
  store_as<C>(g.dtype, out, sum);
}

// The sums of a thread, and those of the blocks of the contraction before the current one: pairs[0] holds one block, pairs[1] two.
template <class C, int kSide> struct Sums {
  C now[kSide][kSide] = {}, pairs[2][kSide][kSide] = {};
  int blocks = 0;

  __device__ __forceinline__ void add(int level) {
#pragma unroll
    for (int r = 0; r < kSide; ++r)
#pragma unroll
      for (int c = 0; c < kSide; ++c) now[r][c] = (level ? pairs[1][r][c] : pairs[0][r][c]) + now[r][c];
  }
  __device__ __forceinline__ void take() {
    if (blocks & 1) add(0);
#pragma unroll
    for (int r = 0; r < kSide; ++r)
#pragma unroll
      for (int c = 0; c < kSide; ++c) {
        if (blocks & 1) pairs[1][r][c] = now[r][c];
        else pairs[0][r][c] = now[r][c];
        now[r][c] = C(0);
      }
    ++blocks;
  }
  __device__ __forceinline__ void finish() {
    if (blocks & 1) add(0);
    if (blocks & 2) add(1);
  }
};

template <class C, int kSide>
__global__ void __launch_bounds__(kLanes* kLanes, 2) multiply_gathered(const __grid_constant__ Gather g) {
  constexpr int kTile = kSide * kLanes, kThreads = kLanes * kLanes, kColumnsApart = kThreads / kTile;
  __shared__ C a[kConvStep][kTile + 1], b[kConvStep][kTile];
  const ConvGemm& p = g.p;
  const int t = int(threadIdx.x), tx = t % kLanes, ty = t / kLanes;
  uint32_t rest = blockIdx.x / g.tiles_n;
  const uint32_t tile_n = blockIdx.x - rest * g.tiles_n, tile_m = rest % g.tiles_m;
  rest /= g.tiles_m;
  const uint32_t slice = rest % g.slices, group = rest / g.slices;
  const int64_t m0 = int64_t(tile_m) * kTile, begin = slice * kConvSlice;
  const int64_t end = p.k.count < begin + kConvSlice ? p.k.count : begin + kConvSlice;
  // The column of b that this thread brings: the element of the source for number 0 of k.
  const int64_t n0 = int64_t(tile_n) * kTile, column = n0 + t % kTile;
  const bool inside = column < p.n.count;
  const Place of_n = place_of(g.n, uint32_t(inside ? column : 0));
  const char* const source = p.b + group * p.b_group + of_n.first * p.b_n;
  const int64_t down = p.at[0] + of_n.down * p.by_n[0], across = p.at[1] + of_n.across * p.by_n[1];
  const char* const left = p.a + group * p.a_group + m0 * p.a_row;
  Sums<C, kSide> sums;
#pragma unroll 1
  for (int64_t k0 = begin; k0 < end; k0 += kConvStep) {
    if (k0 != begin && (k0 - begin) % kernels::kOrderBlock == 0) sums.take();
    {
      const int64_t k = k0 + tx;
      const Place at = place_of(g.k, uint32_t(k < end ? k : 0));
      const char* const from = left + at.first * p.a_k[0] + at.down * p.a_k[1] + at.across * p.a_k[2];
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
        const int m = ty + r * kLanes;
        a[tx][m] = k < end && m0 + m < p.m ? load_factor<C>(g, from + m * p.a_row) : C(0);
      }
    }
#pragma unroll
    for (int row = t / kTile; row < kConvStep; row += kColumnsApart) {
      const int64_t k = k0 + row;
      C x = C(0);
      if (inside && k < end) {
        const Place at = place_of(g.k, uint32_t(k));
        const int64_t y = down + at.down * p.by_k[0], z = across + at.across * p.by_k[1];
        if (uint64_t(y) < uint64_t(p.length[0]) && uint64_t(z) < uint64_t(p.length[1]))
          x = load_factor<C>(g, source + at.first * p.b_k + y * p.stride[0] + z * p.stride[1]);
      }
      b[row][t % kTile] = x;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kConvStep; ++k) {
      C row[kSide], line[kSide];
#pragma unroll
      for (int r = 0; r < kSide; ++r) row[r] = a[k][ty + r * kLanes], line[r] = b[k][tx + r * kLanes];
#pragma unroll
      for (int r = 0; r < kSide; ++r)
#pragma unroll
        for (int c = 0; c < kSide; ++c) multiply_add(sums.now[r][c], row[r], line[c]);
    }
    __syncthreads();
  }
  sums.finish();
#pragma unroll
  for (int r = 0; r < kSide; ++r)
#pragma unroll
    for (int c = 0; c < kSide; ++c) {
      const int64_t m = m0 + ty + r * kLanes, n = n0 + tx + c * kLanes;
      if (m >= p.m || n >= p.n.count) continue;
      if (g.sums) static_cast<C*>(g.sums)[((slice * p.groups + group) * p.m + m) * p.n.count + n] = sums.now[r][c];
      else store_result<C>(g, group, m, uint32_t(n), sums.now[r][c]);
    }
}

// Each thread combines the sums of the slices of one element, in pairs of neighbours.
template <class C> __global__ void __launch_bounds__(kThreads) add_slices(const __grid_constant__ Gather g) {
  const ConvGemm& p = g.p;
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x, size = p.groups * p.m * p.n.count;
  if (i >= size) return;
  C* const sums = static_cast<C*>(g.sums) + i;
#pragma unroll 1
  for (int64_t apart = 1; apart < g.slices; apart *= 2)
#pragma unroll 1
    for (int64_t s = 0; s + apart < g.slices; s += 2 * apart) sums[s * size] = sums[s * size] + sums[(s + apart) * size];
  const int64_t row = i / p.n.count;
  store_result<C>(g, row / p.m, row % p.m, uint32_t(i - row * p.n.count), sums[0]);
}

Divider divider(int64_t length) { return Divider(uint32_t(length > 0 ? length : 1)); }

template <class C, int kSide> void multiply(const ConvGemm& p, DType dtype) {
  const int64_t elements = p.groups * p.m * p.n.count;
  if (elements == 0) return;
  constexpr int64_t kTile = kSide * kLanes;
  const int64_t tiles_m = (p.m + kTile - 1) / kTile, tiles_n = (p.n.count + kTile - 1) / kTile;
  const int64_t slices = p.k.count > kConvSlice ? (p.k.count + kConvSlice - 1) / kConvSlice : 1;
  const int64_t blocks = p.groups * slices * tiles_m * tiles_n;
  if (p.n.count > kMaxWalk || p.k.count > kMaxWalk || blocks > kMaxBlocks)
    throw Failure("a convolution of more than 2^31 positions: compute it for fewer images at a time");
  Scratch scratch;
  Gather g{p, dtype, dtype == DType::f32 ? kernels::precision() : kernels::Precision::exact, {}, {}, {}, {}, {}, nullptr};
  for (int d = 0; d < 2; ++d) g.n[d] = divider(p.n.length[d]), g.k[d] = divider(p.k.length[d]);
  g.tiles_m = uint32_t(tiles_m), g.tiles_n = uint32_t(tiles_n), g.slices = uint32_t(slices);
  if (slices > 1) g.sums = scratch.take<C>(slices * elements);
  start(multiply_gathered<C, kSide>, dim3(unsigned(blocks)), kLanes * kLanes, 0, g);
  if (slices > 1) start(add_slices<C>, blocks_for(elements), kThreads, 0, g);
}

void multiply(const ConvGemm& p, DType dtype) {
  if (dtype == DType::f64) multiply<double, 2>(p, dtype);
  else multiply<float, 4>(p, dtype);
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_convolution(const Launch& launch) { cuda::multiply(cuda::gemm_of_convolution(launch), launch.out().dtype); }
void run_convolution_input(const Launch& launch) {
  for (const cuda::ConvGemm& p : cuda::gemms_of_convolution_input(launch)) cuda::multiply(p, launch.out().dtype);
}
void run_convolution_weight(const Launch& launch) {
  cuda::multiply(cuda::gemm_of_convolution_weight(launch), launch.out().dtype);
}

}  // namespace pb::kernels
