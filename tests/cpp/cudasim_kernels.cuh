// Ordinary CUDA kernels for the tests of the simulator.
#pragma once

#include <cstdint>
#if defined(__CUDACC__)
#include <cooperative_groups.h>
#endif

#include "cuda/mma.cuh"
#include "cuda/runtime.h"
#include "math/half.h"

namespace cg = cooperative_groups;

constexpr int kBlock = 128;
constexpr unsigned kAll = 0xffffffffu;

// ---- indices, launches

__global__ void indices(int* out) {
  const int thread = int((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
  const int block = int((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
  const int threads = int(blockDim.x * blockDim.y * blockDim.z);
  out[block * threads + thread] = block * threads + thread;
}

struct Table {
  const float* x[40];
  float scale;
};
__global__ void sum_of_table(const __grid_constant__ Table table, int count, float* out) {
  const int i = int(threadIdx.x);
  float sum = 0;
  for (int k = 0; k < count; ++k) sum += table.x[k][i];
  out[i] = table.scale * sum;
}

__global__ void axpy(const float* __restrict__ x, float* __restrict__ y, float a, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] += a * x[i];
}

// ---- barriers and shared memory

__global__ void reverse(const int* x, int* y) {
  __shared__ int shared[kBlock];
  const unsigned i = threadIdx.x;
  shared[i] = x[blockIdx.x * kBlock + i];
  __syncthreads();
  y[blockIdx.x * kBlock + i] = shared[kBlock - 1 - i];
}

__global__ void votes_of_block(const int* x, int* out) {
  const int bit = x[threadIdx.x];
  const int any = __syncthreads_or(bit), all = __syncthreads_and(bit);
  if (threadIdx.x == 0) out[0] = any, out[1] = all;
}

struct Sum {
  __device__ static float identity() { return 0; }
  __device__ static float combine(float a, float b) { return a + b; }
};
struct Max {
  __device__ static float identity() { return -INFINITY; }
  __device__ static float combine(float a, float b) { return fmaxf(a, b); }
};

template <class R> __device__ float warp_reduce(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = R::combine(x, __shfl_xor_sync(kAll, x, offset));
  return x;
}

// Reduces x over the block's kBlock threads, and returns the result to every thread.
template <class R> __device__ float block_reduce(float x) {
  __shared__ float partial[kBlock / 32];
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
  x = warp_reduce<R>(x);
  __syncthreads();  // all threads have read the results of an earlier call
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_reduce<R>(lane < kBlock / 32 ? partial[lane] : R::identity());
}

template <class R> __global__ void __launch_bounds__(kBlock) reduce_rows(const float* x, float* y, int columns) {
  float value = R::identity();
  for (int c = int(threadIdx.x); c < columns; c += kBlock) value = R::combine(value, x[blockIdx.x * columns + c]);
  value = block_reduce<R>(value);
  if (threadIdx.x == 0) y[blockIdx.x] = value;
}

// One block per row. Each row is read in packs of four, and kept in dynamic shared memory.
__global__ void __launch_bounds__(kBlock) softmax(const float4* __restrict__ x, float4* __restrict__ y, int packs) {
  float4* row = reinterpret_cast<float4*>(pb_shared);
  x += size_t(blockIdx.x) * packs;
  y += size_t(blockIdx.x) * packs;
  float top = -INFINITY, sum = 0;
  for (int i = int(threadIdx.x); i < packs; i += kBlock) {
    const float4 v = row[i] = __ldcg(x + i);
    top = fmaxf(top, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
  }
  top = block_reduce<Max>(top);
  for (int i = int(threadIdx.x); i < packs; i += kBlock) {
    float4 v = row[i];
    v = make_float4(expf(v.x - top), expf(v.y - top), expf(v.z - top), expf(v.w - top));
    row[i] = v;
    sum += v.x + v.y + v.z + v.w;
  }
  const float scale = 1 / block_reduce<Sum>(sum);
  for (int i = int(threadIdx.x); i < packs; i += kBlock) {
    const float4 v = row[i];
    y[i] = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
  }
}

// ---- cooperation of blocks

__global__ void histogram(const int* keys, int* counts, float* total, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  atomicAdd(&counts[keys[i]], 1);
  atomicAdd(total, 1.0f);
}

__global__ void largest(const int* x, int* highest, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) atomicMax(highest, x[i]);
}

// One thread of each block takes a lock in device memory.
__global__ void under_a_lock(int* lock, int* value) {
  if (threadIdx.x != 0) return;
  while (atomicCAS(lock, 0, 1) != 0) __nanosleep(20);
  const int now = *static_cast<volatile int*>(value);
  __threadfence();
  *static_cast<volatile int*>(value) = now + 1;
  __threadfence();
  atomicCAS(lock, 1, 0);
}

// The last block to finish adds up the partial sums in the order of blocks, so the result always has the same bits.
__global__ void __launch_bounds__(kBlock) ordered_sum(const float* x, int n, float* partial, unsigned* ticket, float* out) {
  __shared__ bool last;
  float sum = 0;
  for (int i = int(blockIdx.x * kBlock + threadIdx.x); i < n; i += int(gridDim.x) * kBlock) sum += x[i];
  sum = block_reduce<Sum>(sum);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  float total = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kBlock) total += static_cast<volatile float*>(partial)[i];
  total = block_reduce<Sum>(total);
  if (threadIdx.x == 0) *out = total, *ticket = 0;
}

// Every block reads the value that its neighbour wrote in the previous round.
__global__ void ring(int* a, int* b, int rounds) {
  const cg::grid_group grid = cg::this_grid();
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) b[blockIdx.x] = static_cast<volatile int*>(a)[(blockIdx.x + 1) % gridDim.x] + 1;
    grid.sync();
    int* other = a;
    a = b;
    b = other;
  }
}

// ---- warps

__global__ void shuffles(int* out, int source, int delta, int mask, int width) {
  const int x = 100 + int(threadIdx.x), i = int(threadIdx.x);
  out[i] = __shfl_sync(kAll, x, source, width);
  out[32 + i] = __shfl_up_sync(kAll, x, unsigned(delta), width);
  out[64 + i] = __shfl_xor_sync(kAll, x, mask, width);
}

__global__ void votes_of_warp(const int* x, unsigned* out) {
  const unsigned i = threadIdx.x;
  const bool upper = i >= 16;
  const unsigned half = upper ? 0xffff0000u : 0x0000ffffu;  // the two halves of a warp vote at the same time
  out[i] = __ballot_sync(half, x[i] & 1);
  out[32 + i] = unsigned(__any_sync(half, x[i] == 7)) | unsigned(__all_sync(half, x[i] < 100)) << 1;
}

// ---- asynchronous copies, and products of tiles

__global__ void staged(const float4* x, float4* y, int tiles, bool wait) {
  __shared__ float4 stage[2][32];
  const int i = int(threadIdx.x);
  __pipeline_memcpy_async(&stage[0][i], &x[i], sizeof(float4));
  __pipeline_commit();
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) __pipeline_memcpy_async(&stage[(tile + 1) % 2][i], &x[32 * (tile + 1) + i], sizeof(float4));
    __pipeline_commit();
    if (wait) __pipeline_wait_prior(1);
    __syncthreads();
    y[32 * tile + i] = stage[tile % 2][31 - i];
    __syncthreads();
  }
}

// c = a b' for a (m, k) and b (n, k); one warp per 16×8 tile of c.
__global__ void product_tf32(const float* a, const float* b, float* c, int n, int k) {
  const int g = int(threadIdx.x / 4), t = int(threadIdx.x % 4), row = int(blockIdx.y) * 16 + g, column = int(blockIdx.x) * 8;
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < k; i += 8) {
    const float *left = a + row * k + i + t, *right = b + (column + g) * k + i + t;
    const uint32_t fa[4] = {pb::cuda::to_tf32(left[0]), pb::cuda::to_tf32(left[8 * k]), pb::cuda::to_tf32(left[4]),
                            pb::cuda::to_tf32(left[8 * k + 4])};
    const uint32_t fb[2] = {pb::cuda::to_tf32(right[0]), pb::cuda::to_tf32(right[4])};
    pb::cuda::mma_tf32(d, fa, fb);
  }
  for (int j = 0; j < 4; ++j) c[(row + 8 * (j / 2)) * n + column + 2 * t + j % 2] = d[j];
}

__device__ inline uint32_t two(const float* x) {
  return uint32_t(pb::bfloat16(x[1]).bits) << 16 | uint32_t(pb::bfloat16(x[0]).bits);
}
__global__ void product_bf16(const float* a, const float* b, float* c, int n, int k) {
  const int g = int(threadIdx.x / 4), t = int(threadIdx.x % 4), row = int(blockIdx.y) * 16 + g, column = int(blockIdx.x) * 8;
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < k; i += 16) {
    const float *left = a + row * k + i + 2 * t, *right = b + (column + g) * k + i + 2 * t;
    const uint32_t fa[4] = {two(left), two(left + 8 * k), two(left + 8), two(left + 8 * k + 8)};
    const uint32_t fb[2] = {two(right), two(right + 8)};
    pb::cuda::mma_bf16(d, fa, fb);
  }
  for (int j = 0; j < 4; ++j) c[(row + 8 * (j / 2)) * n + column + 2 * t + j % 2] = d[j];
}
