// Measures the smallest costs of a GPU: launches, chains of launches, barriers of a grid, a copy, and the smallest product worth
// a launch. Prints one JSON object per line: name, unit, and the median and quartiles of the rounds. run.py builds this file with
// nvcc, or with g++ and csrc/cudasim, where the numbers mean nothing.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "cuda/mma.cuh"
#include "cuda/runtime.h"

namespace {

#if defined(__CUDACC__)
constexpr int kRounds = 11, kScale = 1, kReplays = 8;
#else
constexpr int kRounds = 1, kScale = 128, kReplays = 1;  // kScale divides all sizes and counts
#endif

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("{\"name\": \"%s\", \"error\": \"%s\"}\n", what, cudaGetErrorString(error));
  std::exit(1);
}

cudaStream_t stream;

// ---- time

double microseconds_of_device(const std::function<void()>& work) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
  check(cudaEventRecord(begin, stream), "event");
  work();
  check(cudaEventRecord(end, stream), "event");
  check(cudaEventSynchronize(end), "waiting");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end), "event");
  (void)cudaEventDestroy(begin), (void)cudaEventDestroy(end);
  return double(milliseconds) * 1e3;
}

double microseconds_of_host(const std::function<void()>& work) {
  check(cudaStreamSynchronize(stream), "waiting");
  const auto begin = std::chrono::steady_clock::now();
  work();
  const double taken = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  check(cudaStreamSynchronize(stream), "waiting");
  return taken;
}

void report(const char* name, const char* unit, const std::function<double()>& measure) {
  std::vector<double> values;
  (void)measure();
  for (int round = 0; round < kRounds; ++round) values.push_back(measure());
  std::sort(values.begin(), values.end());
  std::printf("{\"name\": \"%s\", \"unit\": \"%s\", \"median\": %.4f, \"q1\": %.4f, \"q3\": %.4f}\n", name, unit,
              values[kRounds / 2], values[kRounds / 4], values[kRounds - 1 - kRounds / 4]);
  std::fflush(stdout);
}

// ---- launches

enum class Way {
  plain,
  early,
  whole,
  cluster
};  // early: the kernel may start before the previous one ends; whole: all blocks are resident at once

template <class... E, class... A>
void launch(void (*kernel)(E...), int blocks, int threads, Way way, const A&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks), config.blockDim = dim3(threads), config.stream = stream;
  cudaLaunchAttribute attribute{};
  if (way == Way::early) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  } else if (way == Way::cluster) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = unsigned(blocks), attribute.val.clusterDim.y = 1, attribute.val.clusterDim.z = 1;
  } else {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  config.attrs = &attribute, config.numAttrs = way == Way::plain ? 0 : 1;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), "launch");
}

__global__ void nothing() {}

// Waits until the previous kernel has written x, and reads it.
__global__ void dependent_step(float* x) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  x[threadIdx.x] += 1.0f;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

class Graph {
 public:
  explicit Graph(const std::function<void()>& work) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    work();
    cudaGraph_t graph;
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec_, graph, 0), "graph");
    (void)cudaGraphDestroy(graph);
    replay();
    check(cudaStreamSynchronize(stream), "replay");
  }
  ~Graph() { (void)cudaGraphExecDestroy(exec_); }
  void replay() const { check(cudaGraphLaunch(exec_, stream), "replay"); }

 private:
  cudaGraphExec_t exec_;
};

// Reports the time of one additional step: the difference between a long and a short chain of steps in a graph, each replayed
// several times.
void report_node(const char* name, const std::function<void()>& step) {
  constexpr int kShort = kScale > 1 ? 2 : 64, kLong = 1024 / kScale;
  const Graph small([&] {
    for (int k = 0; k < kShort; ++k) step();
  });
  const Graph large([&] {
    for (int k = 0; k < kLong; ++k) step();
  });
  const auto time = [](const Graph& graph) {
    return microseconds_of_device([&] {
             for (int k = 0; k < kReplays; ++k) graph.replay();
           }) /
           kReplays;
  };
  report(name, "us", [&] { return (time(large) - time(small)) / (kLong - kShort); });
}

void launches(float* memory) {
  constexpr int kCount = 512 / kScale;
  const auto repeat = [](const std::function<void()>& step) {
    return [step] {
      for (int k = 0; k < kCount; ++k) step();
    };
  };
  const auto empty = [] { launch(nothing, 1, 32, Way::plain); };
  const auto plain = [memory] { launch(dependent_step, 1, 128, Way::plain, memory); };
  const auto early = [memory] { launch(dependent_step, 1, 128, Way::early, memory); };
  report("launch, host", "us", [&] { return microseconds_of_host(repeat(empty)) / kCount; });
  report("launch and wait", "us",
         [&] { return microseconds_of_host([&] { empty(), check(cudaStreamSynchronize(stream), "waiting"); }); });
  report("empty kernel in a stream", "us", [&] { return microseconds_of_device(repeat(empty)) / kCount; });
  report("dependent kernel in a stream", "us", [&] { return microseconds_of_device(repeat(plain)) / kCount; });
  report("dependent kernel in a stream, programmatic launch", "us",
         [&] { return microseconds_of_device(repeat(early)) / kCount; });
  report_node("empty kernel in a graph", empty);
  report_node("dependent kernel in a graph", plain);
  report_node("dependent kernel in a graph, programmatic launch", early);
  const Graph graph(empty);
  report("graph of one kernel, host", "us", [&] {
    return microseconds_of_host([&] {
             for (int k = 0; k < kCount; ++k) graph.replay();
           }) /
           kCount;
  });
}

// ---- barriers

__global__ void grid_barriers(int count) {
  const auto grid = cooperative_groups::this_grid();
  for (int k = 0; k < count; ++k) grid.sync();
}

void barriers(int blocks) {
  const auto run = [&](int count) {
    return microseconds_of_device([&] { launch(grid_barriers, blocks, 256, Way::whole, count); });
  };
  constexpr int kFew = 10, kMany = 10 + 1024 / kScale;
  report("barrier of a grid, a block a multiprocessor", "us", [&] { return (run(kMany) - run(kFew)) / (kMany - kFew); });
}

#if defined(__CUDACC__)  // the simulator has no clusters
__global__ void cluster_barriers([[maybe_unused]] int count) {
#if __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  for (int k = 0; k < count; ++k) cluster.sync();
#endif
}

void cluster() {
  const auto run = [&](int count) {
    return microseconds_of_device([&] { launch(cluster_barriers, 8, 256, Way::cluster, count); });
  };
  report("barrier of a cluster of 8 blocks", "us", [&] { return (run(2010) - run(10)) / 2000; });
}
#else
void cluster() {}
#endif

// ---- copies

__global__ void copy_packs(int64_t n, float4* to, const float4* from) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i];
}

void copies() {
  const int64_t bytes = (int64_t{1} << 30) / (kScale > 1 ? 4096 : 1);
  char *from, *to;
  check(cudaMalloc(&from, size_t(bytes)), "memory"), check(cudaMalloc(&to, size_t(bytes)), "memory");
  check(cudaMemsetAsync(from, 0x3f, size_t(bytes), stream), "filling");
  const int64_t packs = bytes / 16;
  const auto gigabytes = [&](const std::function<void()>& copy) {
    constexpr int kCopies = 8;
    return 2e-3 * double(bytes) * kCopies / microseconds_of_device([&] {
             for (int k = 0; k < kCopies; ++k) copy();
           });
  };
  report("copy by the runtime", "GB/s", [&] {
    return gigabytes([&] { check(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, stream), "copy"); });
  });
  report("copy by a kernel", "GB/s", [&] {
    return gigabytes([&] {
      launch(copy_packs, int((packs + 255) / 256), 256, Way::plain, packs, reinterpret_cast<float4*>(to),
             reinterpret_cast<const float4*>(from));
    });
  });
  (void)cudaFree(from), (void)cudaFree(to);
}

// ---- the smallest product: (64, 784) x (784, 128), as in the first layer of a small network

constexpr int kRows = 64, kColumns = 128, kDepth = 784;

// Each warp computes a tile of 16 x 8, and reads its operands from global memory. a: rows x depth; b: columns x depth.
__global__ void __launch_bounds__(32) small_product(float* out, const float* a, const float* b) {
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  const float* left = a + (blockIdx.x % (kRows / 16) * 16 + g) * kDepth + t;
  const float* right = b + (blockIdx.x / (kRows / 16) * 8 + g) * kDepth + t;
  float sum[4] = {};
#pragma unroll 7
  for (int k = 0; k < kDepth; k += 8) {
    using pb::cuda::to_tf32;
    const uint32_t x[4] = {to_tf32(left[k]), to_tf32(left[8 * kDepth + k]), to_tf32(left[k + 4]),
                           to_tf32(left[8 * kDepth + k + 4])};
    const uint32_t y[2] = {to_tf32(right[k]), to_tf32(right[k + 4])};
    pb::cuda::mma_tf32(sum, x, y);
  }
  float* corner = out + (blockIdx.x % (kRows / 16) * 16 + g) * kColumns + blockIdx.x / (kRows / 16) * 8 + 2 * t;
  corner[0] = sum[0], corner[1] = sum[1], corner[8 * kColumns] = sum[2], corner[8 * kColumns + 1] = sum[3];
}

void products() {
  std::vector<float> a(kRows * kDepth), b(kColumns * kDepth), got(kRows * kColumns);
  uint32_t state = 1;
  for (auto* numbers : {&a, &b})
    for (float& x : *numbers) x = float((state = state * 1664525u + 1013904223u) >> 8) / float(1 << 23) - 1;
  float *left, *right, *out;
  check(cudaMalloc(&left, a.size() * 4), "memory"), check(cudaMalloc(&right, b.size() * 4), "memory");
  check(cudaMalloc(&out, got.size() * 4), "memory");
  check(cudaMemcpyAsync(left, a.data(), a.size() * 4, cudaMemcpyHostToDevice, stream), "copy");
  check(cudaMemcpyAsync(right, b.data(), b.size() * 4, cudaMemcpyHostToDevice, stream), "copy");
  const auto product = [&] { launch(small_product, kRows / 16 * kColumns / 8, 32, Way::plain, out, left, right); };
  product();
  check(cudaMemcpyAsync(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost, stream), "copy");
  check(cudaStreamSynchronize(stream), "waiting");
  double error = 0, norm = 0;
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kColumns; ++j) {
      double exact = 0;
      for (int k = 0; k < kDepth; ++k) exact += double(a[size_t(i * kDepth + k)]) * double(b[size_t(j * kDepth + k)]);
      error += std::pow(exact - double(got[size_t(i * kColumns + j)]), 2), norm += exact * exact;
    }
  const double relative = std::sqrt(error / norm);
  std::printf("{\"name\": \"smallest product, relative error\", \"unit\": \"1\", \"median\": %.3g, \"right\": %s}\n", relative,
              relative < 2e-3 ? "true" : "false");
  report_node("smallest product (64 x 128 x 784, tf32) in a graph", product);
  (void)cudaFree(left), (void)cudaFree(right), (void)cudaFree(out);
}

}  // namespace

int main() {
  check(cudaSetDevice(0), "device");
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "device");
  float* memory;
  check(cudaMalloc(&memory, 4096), "memory");
  check(cudaMemsetAsync(memory, 0, 4096, stream), "filling");
  launches(memory);
  barriers(multiprocessors);
  cluster();
  products();
  copies();
  return 0;
}
