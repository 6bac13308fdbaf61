// Kernels with one bug each. Some are templates, which have no bug if fixed = true.
#pragma once

#include "cudasim_kernels.cuh"

// ---- wrong values

template <bool fixed> __global__ void no_barrier_before_read(float* out) {
  __shared__ float shared[kBlock];
  const unsigned i = threadIdx.x;
  shared[i] = float(i);
  if (fixed) __syncthreads();
  out[blockIdx.x * kBlock + i] = shared[kBlock - 1 - i];
}

// Warps write the sums of the next round before all threads have read those of this round.
template <bool fixed> __global__ void no_barrier_before_write(float* out) {
  __shared__ float shared[kBlock / 32];
  float x = float(threadIdx.x);
  for (int round = 0; round < 3; ++round) {
    x = warp_reduce<Sum>(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < kBlock / 32; ++i) x += shared[i] * float(i + round + 1) * 1e-2f;
    if (fixed) __syncthreads();
  }
  out[blockIdx.x * kBlock + threadIdx.x] = x;
}

template <bool fixed> __global__ void no_warp_barrier(float* out) {
  __shared__ float shared[kBlock];
  const unsigned i = threadIdx.x;
  shared[i] = float(i);
  if (fixed) __syncwarp();
  out[blockIdx.x * kBlock + i] = shared[i ^ 1];
}

// Gives the right result only if block 0 runs first.
template <bool fixed> __global__ void blocks_in_order(int* state, float* out) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *state = 1;
  const int seen = fixed ? 1 : *static_cast<volatile int*>(state);
  out[blockIdx.x * kBlock + threadIdx.x] = float(seen);
}

__global__ void last_element_unwritten(float* out, int n) {
  if (int(threadIdx.x) < n - 1) out[threadIdx.x] = 1;
}

// Returns the values that a block finds in shared memory, and leaves other values there for the next block.
__global__ void reads_shared_memory_first(float* out) {
  __shared__ float fixed_size[kBlock];
  float* dynamic = reinterpret_cast<float*>(pb_shared);
  const unsigned i = threadIdx.x;
  out[(2 * blockIdx.x) * kBlock + i] = fixed_size[i];
  out[(2 * blockIdx.x + 1) * kBlock + i] = dynamic[i];
  fixed_size[i] = dynamic[i] = 1;
}

template <class T> __device__ T template_reads_shared_memory() {
  __shared__ T shared[32];
  const T found = shared[threadIdx.x];
  shared[threadIdx.x] = 1;
  return found;
}
__global__ void reads_shared_memory_of_a_template(float* out) {
  out[blockIdx.x * 32 + threadIdx.x] = template_reads_shared_memory<float>();
}

// Odd lanes exit before the shuffle.
__global__ void shuffle_from_exited_lanes(float* out) {
  if (threadIdx.x % 2) return;
  out[threadIdx.x] = __shfl_sync(kAll, 1.0f, int(threadIdx.x) + (threadIdx.x < 16 ? 1 : 0));
}

__global__ void shuffle_from_lanes_outside_the_mask(float* out) {
  if (threadIdx.x >= 16) return;
  out[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, int(threadIdx.x) + 8);
}

// ---- bugs that stop the program

__global__ void barrier_in_a_branch() {
  if (threadIdx.x < 40) __syncthreads();
}

__global__ void barriers_in_two_branches() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void exit_before_a_barrier() {
  if (threadIdx.x == 3) return;
  __syncthreads();
}

// Lane 5 waits for lane 6, which waits for lane 5.
__global__ void lanes_that_wait_for_each_other() { __syncwarp(threadIdx.x % 32 == 5 ? 0x60u : kAll); }

__global__ void mask_without_the_caller() { __shfl_sync(0xfffffffeu, 1.0f, 1); }

__global__ void two_collectives_at_once() {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    __ballot_sync(kAll, 1);
  }
}

__global__ void grid_barrier_without_block_2() {
  if (blockIdx.x == 2) return;
  cg::this_grid().sync();
}

__global__ void grid_barrier() { cg::this_grid().sync(); }

__global__ void misaligned_pack(const float* x, float* y) {
  const float4 pack = __ldcg(reinterpret_cast<const float4*>(x + 1));
  *y = pack.x;
}

__global__ void one_too_many(float* x, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i <= n) x[i] = 1;
}

__global__ void dynamic_memory_beyond_its_end(float* out) {
  float* shared = reinterpret_cast<float*>(pb_shared);
  shared[threadIdx.x + 1] = 1;
  __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x + 1];
}

__global__ void static_memory_beyond_its_end(float* out) {
  __shared__ float shared[64];
  shared[threadIdx.x + 1] = 1;
  __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x + 1];
}

__device__ int recursive(volatile int* x, int depth) {
  volatile int here[256];
  here[depth % 256] = *x;
  return depth == 0 ? here[0] : recursive(x, depth - 1) + here[depth % 256];
}
__global__ void stack_overflow(int* x) { *x = recursive(x, 1000); }
