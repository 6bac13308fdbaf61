// Kernels with races in shared memory that the simulator must find, and kernels without any. The argument is the name of a kernel.
// races.cpp says how it is compiled; tests/tools/test_races.py runs it.
#include <cstdio>
#include <cstring>

#include "cuda/runtime.h"

namespace {

constexpr int kThreads = 64;

__global__ void same_value(int* out) {
  __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  flag = 1;
  __syncthreads();
  out[threadIdx.x] = flag;
}

__global__ void lanes_of_a_warp(int* out) {
  __shared__ int sum[2];
  if (threadIdx.x % 32 < 2) sum[threadIdx.x / 32] = 7;
  __syncthreads();
  out[threadIdx.x] = sum[threadIdx.x / 32];
}

__global__ void write_then_read(int* out) {
  __shared__ int x[kThreads];
  x[threadIdx.x] = int(threadIdx.x);
  out[threadIdx.x] = x[kThreads - 1 - threadIdx.x];
}

__global__ void read_then_write(int* out) {
  __shared__ int x[kThreads];
  x[threadIdx.x] = int(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = x[kThreads - 1 - threadIdx.x];
  x[threadIdx.x] = 0;
}

__global__ void part_of_a_word(int* out) {
  short* const x = reinterpret_cast<short*>(pb_shared);
  x[2 * threadIdx.x] = x[2 * threadIdx.x + 1] = 0;
  out[threadIdx.x] = 0;
  if (threadIdx.x == 40) reinterpret_cast<int*>(pb_shared)[3] = 5;
}

__global__ void barriers_order(int* out) {
  __shared__ int x[kThreads], y, count;
  if (threadIdx.x == 0) y = count = 0;
  x[threadIdx.x] = int(threadIdx.x);
  __syncthreads();
  if (threadIdx.x % 2 == 0) x[threadIdx.x + 1] = x[threadIdx.x];
  __syncwarp();
  x[threadIdx.x ^ 1] += x[threadIdx.x ^ 1];
  const int sum = __shfl_xor_sync(0xffffffffu, x[threadIdx.x ^ 1], 1);
  x[threadIdx.x] = sum;
  atomicAdd(&count, 1);
  __syncthreads();
  if (threadIdx.x == 63) y = count;
  out[threadIdx.x] = __syncthreads_and(x[0] >= 0) + y;
}

__global__ void two_blocks(int* out) {
  __shared__ int x;
  if (threadIdx.x == blockIdx.x) x = 1;
  __syncthreads();
  out[threadIdx.x] = x;
}

const struct {
  const char* name;
  void (*kernel)(int*);
} kKernels[] = {{"same_value", same_value},
                {"lanes_of_a_warp", lanes_of_a_warp},
                {"write_then_read", write_then_read},
                {"read_then_write", read_then_write},
                {"part_of_a_word", part_of_a_word},
                {"barriers_order", barriers_order},
                {"two_blocks", two_blocks}};

}  // namespace

int main(int, char** arguments) {
  int* out = nullptr;
  if (cudaMalloc(&out, kThreads * sizeof(int)) != cudaSuccess) return 2;
  for (const auto& [name, kernel] : kKernels) {
    if (std::strcmp(name, arguments[1]) != 0) continue;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(2), config.blockDim = dim3(kThreads), config.dynamicSmemBytes = 4 * kThreads;
    if (cudaLaunchKernelEx(&config, kernel, out) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) return 3;
    std::puts("no race");
    return 0;
  }
  return 4;
}
