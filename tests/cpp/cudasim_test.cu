// Tests of the simulator: results of kernels against values computed here, and planted bugs that it must find. The tests of
// results also compile with nvcc. Prints one line per failure and a closing line; exits with 1 if anything failed.
//   g++ -x c++ -std=c++17 -O2 -Wno-unknown-pragmas -Icsrc tests/cpp/cudasim_test.cu csrc/cudasim/*.cpp -o cudasim_test -lpthread
//   ./cudasim_test [part of a test's name]      ./cudasim_test --speed
#include <algorithm>
#include <chrono>

#include "cudasim_harness.h"
#include "cudasim_kernels.cuh"
#if !defined(__CUDACC__)
#include "cudasim_findings.cuh"
#endif

namespace {

void indices_of_blocks_and_threads() {
  const dim3 blocks(3, 2, 2), threads(5, 3, 2);
  Device<int> out(12 * 30);
  EXPECT_OK(Launch(blocks, threads)(indices, out.get()));
  const std::vector<int> got = out.host();
  for (int i = 0; i < 360; ++i) EXPECT(got[size_t(i)] == i);
}

void structs_are_arguments() {
  Table table{};
  Device<float> a(std::vector<float>{1, 2, 3}), b(std::vector<float>{10, 20, 30}), out(3);
  table.x[0] = a;
  table.x[1] = b;
  table.scale = 0.5f;
  EXPECT_OK(Launch(1, 3)(sum_of_table, table, 2, out.get()));
  EXPECT(out.host() == std::vector<float>({5.5f, 11.0f, 16.5f}));
}

void barrier_orders_shared_memory() {
  std::vector<int> x(3 * kBlock);
  for (size_t i = 0; i < x.size(); ++i) x[i] = int(i * i);
  Device<int> dx(x), dy(x.size());
  EXPECT_OK(Launch(3, kBlock)(reverse, dx.get(), dy.get()));
  const std::vector<int> y = dy.host();
  for (size_t i = 0; i < x.size(); ++i) EXPECT(y[i] == x[i / kBlock * kBlock + kBlock - 1 - i % kBlock]);
}

void barriers_combine_votes() {
  for (const int ones : {0, 1, 70, 100}) {
    std::vector<int> x(100, 0);
    std::fill(x.begin(), x.begin() + ones, 1);
    Device<int> dx(x), out(2);
    EXPECT_OK(Launch(1, 100)(votes_of_block, dx.get(), out.get()));
    EXPECT(out.host() == std::vector<int>({ones > 0, ones == 100}));
  }
}

void reductions_of_rows() {
  const int rows = 9, columns = 777;
  const std::vector<float> x = normal(size_t(rows * columns), 1);
  Device<float> dx(x), dy(size_t{rows});
  std::vector<double> sums, tops;
  for (int r = 0; r < rows; ++r) {
    double sum = 0, top = -INFINITY;
    for (int c = 0; c < columns; ++c) {
      sum += x[size_t(r * columns + c)];
      top = std::max(top, double(x[size_t(r * columns + c)]));
    }
    sums.push_back(sum);
    tops.push_back(top);
  }
  EXPECT_OK(Launch(rows, kBlock)(reduce_rows<Sum>, dx.get(), dy.get(), columns));
  EXPECT(relative_error(dy.host(), sums) < 1e-6);
  EXPECT_OK(Launch(rows, kBlock)(reduce_rows<Max>, dx.get(), dy.get(), columns));
  EXPECT(relative_error(dy.host(), tops) == 0);
}

void softmax_with_packs_and_dynamic_memory() {
  const size_t rows = 17, columns = 500;
  const std::vector<float> x = normal(rows * columns, 2);
  std::vector<double> exact(x.size());
  for (size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (size_t c = 0; c < columns; ++c) sum += exact[r * columns + c] = std::exp(double(x[r * columns + c]));
    for (size_t c = 0; c < columns; ++c) exact[r * columns + c] /= sum;
  }
  Device<float> dx(x), dy(x.size());
  EXPECT_OK(Launch(unsigned(rows), kBlock, columns * 4)(softmax, reinterpret_cast<const float4*>(dx.get()),
                                                        reinterpret_cast<float4*>(dy.get()), int(columns / 4)));
  EXPECT(relative_error(dy.host(), exact) < 1e-6);
}

void atomics_add_up() {
  std::vector<int> keys(3000), counts(7, 0);
  for (size_t i = 0; i < keys.size(); ++i) ++counts[size_t(keys[i] = int(i * i * 31 % 7))];
  Device<int> dk(keys), dc(7, 0);
  Device<float> total(1, 0.0f);
  EXPECT_OK(Launch(12, 256)(histogram, dk.get(), dc.get(), total.get(), 3000));
  EXPECT(dc.host() == counts);
  EXPECT(total.host()[0] == 3000);
}

void an_atomic_takes_the_largest() {
  std::vector<int> x(300);
  for (size_t i = 0; i < x.size(); ++i) x[i] = int(i * 7919 % 1000) * 4 - 2000;
  Device<int> dx(x), highest(1, -(1 << 30));
  EXPECT_OK(Launch(5, 64)(largest, dx.get(), highest.get(), 300));
  EXPECT(highest.host()[0] == *std::max_element(x.begin(), x.end()));
}

void a_lock_between_blocks() {
  Device<int> lock(1, 0), value(1, 0);
  EXPECT_OK(Launch(20, 32)(under_a_lock, lock.get(), value.get()));
  EXPECT(value.host()[0] == 20);
}

void last_block_adds_in_order() {
  const std::vector<float> x = normal(20000, 3);
  double exact = 0;
  for (const float v : x) exact += v;
  Device<float> dx(x), partial(13), out(1);
  Device<unsigned> ticket(1, 0u);
  float first = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_OK(Launch(13, kBlock)(ordered_sum, dx.get(), int(x.size()), partial.get(), ticket.get(), out.get()));
    const float sum = out.host()[0];
    if (repeat == 0) first = sum;
    EXPECT(sum == first);
  }
  EXPECT(std::fabs(first - exact) < 1e-2);
}

void grid_barrier_joins_blocks() {
  for (const int rounds : {1, 4, 7}) {
    std::vector<int> x(11);
    for (int i = 0; i < 11; ++i) x[size_t(i)] = 100 * i;
    Device<int> a(x), b(11, 0);
    EXPECT_OK(Launch(11, 64).cooperative()(ring, a.get(), b.get(), rounds));
    const std::vector<int> got = rounds % 2 ? b.host() : a.host();
    for (int i = 0; i < 11; ++i) EXPECT(got[size_t(i)] == 100 * ((i + rounds) % 11) + rounds);
  }
}

// Computes the source lane of each shuffle from the text of the CUDA guide.
void shuffles_read_the_right_lane() {
  Device<int> out(96);
  for (const int width : {32, 16, 4}) {
    for (const int k : {0, 1, 3, 5, 17}) {
      EXPECT_OK(Launch(1, 32)(shuffles, out.get(), k, k, k, width));
      const std::vector<int> got = out.host();
      for (int lane = 0; lane < 32; ++lane) {
        const int begin = lane - lane % width, end = begin + width, other = lane ^ k;
        EXPECT(got[size_t(lane)] == 100 + begin + k % width);
        EXPECT(got[size_t(32 + lane)] == 100 + (lane - k >= begin ? lane - k : lane));
        EXPECT(got[size_t(64 + lane)] == 100 + (other < end ? other : lane));
      }
    }
  }
}

void votes_of_two_halves_of_a_warp() {
  std::vector<int> x(32);
  for (int i = 0; i < 32; ++i) x[size_t(i)] = i * i % 23;
  Device<int> dx(x);
  Device<unsigned> out(64);
  EXPECT_OK(Launch(1, 32)(votes_of_warp, dx.get(), out.get()));
  const std::vector<unsigned> got = out.host();
  for (size_t i = 0; i < 32; ++i) {
    unsigned odd = 0, seven = 0;
    for (size_t k = i / 16 * 16; k < i / 16 * 16 + 16; ++k) {
      odd |= unsigned(x[k] % 2) << k;
      seven |= x[k] == 7;
    }
    EXPECT(got[i] == odd && got[32 + i] == (seven | 2));
  }
}

void copies_arrive_when_waited_for() {
  const int count = 5;
  const std::vector<float> x = normal(size_t(count * 128), 4);
  Device<float> dx(x), dy(x.size());
  EXPECT_OK(Launch(1, 32)(staged, reinterpret_cast<const float4*>(dx.get()), reinterpret_cast<float4*>(dy.get()), count, true));
  const std::vector<float> y = dy.host();
  for (size_t i = 0; i < x.size(); ++i) EXPECT(y[i] == x[i / 128 * 128 + (31 - i % 128 / 4) * 4 + i % 4]);
}

using Product = void (*)(const float*, const float*, float*, int, int);

double error_of(Product kernel) {
  const int m = 32, n = 24, k = 48;
  const std::vector<float> a = normal(size_t(m * k), 5), b = normal(size_t(n * k), 6);
  std::vector<double> exact(size_t(m * n), 0);
  for (int i = 0; i < m * n * k; ++i)
    exact[size_t(i / k)] += double(a[size_t(i / k / n * k + i % k)]) * b[size_t(i / k % n * k + i % k)];
  Device<float> da(a), db(b), dc(exact.size());
  EXPECT_OK(Launch(dim3(n / 8, m / 16), 32)(kernel, da.get(), db.get(), dc.get(), n, k));
  return relative_error(dc.host(), exact);
}

// The error must be as large as rounding the factors to 10 and to 7 bits makes it, and no smaller.
void products_of_tensor_cores() {
  const double tf32 = error_of(product_tf32), bf16 = error_of(product_bf16);
  EXPECT(tf32 < 6e-4 && tf32 > 6e-5);
  EXPECT(bf16 < 5e-3 && bf16 > 5e-4);
}

void graphs_replay_what_was_captured() {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Device<float> x(1000, 1.0f), y(1000, 0.0f);
  EXPECT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  EXPECT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_OK(Launch(8, kBlock, 0, stream)(axpy, x.get(), y.get(), 2.0f, 1000));
  EXPECT_OK(Launch(8, kBlock, 0, stream)(axpy, x.get(), y.get(), 0.5f, 1000));
  EXPECT_OK(cudaStreamEndCapture(stream, &graph));
  EXPECT(y.host()[0] == 0);
  size_t nodes = 0;
  EXPECT_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT(nodes == 2);
  EXPECT_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int k = 0; k < 4; ++k) EXPECT_OK(cudaGraphLaunch(exec, stream));
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT(y.host() == std::vector<float>(1000, 10));
  EXPECT_OK(cudaGraphExecDestroy(exec));
  EXPECT_OK(cudaGraphDestroy(graph));
  EXPECT_OK(cudaStreamDestroy(stream));
}

// Launches submitted before a node changes keep the node's old arguments.
void a_node_of_a_graph_changes() {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Device<float> x(1000, 1.0f), y(1000, 0.0f), z(500, 0.0f);
  EXPECT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  EXPECT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  EXPECT_OK(Launch(8, kBlock, 0, stream)(axpy, x.get(), y.get(), 2.0f, 1000));
  cudaStreamCaptureStatus status;
  const cudaGraphNode_t* last = nullptr;
  size_t count = 0;
  EXPECT_OK(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &last, nullptr, &count));
  EXPECT(status == cudaStreamCaptureStatusActive && count == 1);
  const cudaGraphNode_t node = last[0];
  EXPECT_OK(Launch(8, kBlock, 0, stream)(axpy, x.get(), y.get(), 0.5f, 1000));
  EXPECT_OK(cudaStreamEndCapture(stream, &graph));
  EXPECT_OK(cudaGraphInstantiate(&exec, graph, 0));
  EXPECT_OK(cudaGraphLaunch(exec, stream));
  const float* from = x.get();
  float *to = z.get(), factor = 3;
  int n = 500;
  void* arguments[] = {&from, &to, &factor, &n};
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(axpy);
  params.gridDim = dim3(4), params.blockDim = dim3(kBlock), params.kernelParams = arguments;
  EXPECT_OK(cudaGraphExecKernelNodeSetParams(exec, node, &params));
  EXPECT_OK(cudaGraphLaunch(exec, stream));
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT(y.host() == std::vector<float>(1000, 3));
  EXPECT(z.host() == std::vector<float>(500, 3));
  EXPECT_OK(cudaGraphExecDestroy(exec));
  EXPECT_OK(cudaGraphDestroy(graph));
  EXPECT_OK(cudaStreamDestroy(stream));
}

// The host may change its memory as soon as an asynchronous copy from it has been submitted.
void copies_from_pageable_memory_are_staged() {
  cudaStream_t stream;
  Device<float> x(1000, 0.0f);
  std::vector<float> values(1000, 7);
  EXPECT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  EXPECT_OK(cudaMemcpyAsync(x, values.data(), 4000, cudaMemcpyHostToDevice, stream));
  values.assign(1000, 8);
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT(x.host() == std::vector<float>(1000, 7));
  EXPECT_OK(cudaStreamDestroy(stream));
}

// Two streams compute y = 3 x, and the first then computes z = y when the second is done. The steps run directly and captured.
void events_order_streams() {
  cudaStream_t a, b;
  cudaEvent_t fork, join;
  EXPECT_OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  EXPECT_OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  EXPECT_OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  EXPECT_OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  Device<float> x(100, 1.0f), y(100), z(100), w(100, 0.0f);
  const auto step = [&] {
    EXPECT_OK(cudaMemsetAsync(y, 0, 400, a));
    EXPECT_OK(cudaEventRecord(fork, a));
    EXPECT_OK(cudaStreamWaitEvent(b, fork, 0));
    EXPECT_OK(Launch(1, 100, 0, b)(axpy, x.get(), y.get(), 3.0f, 100));
    EXPECT_OK(cudaEventRecord(join, b));
    EXPECT_OK(Launch(1, 100, 0, a)(axpy, x.get(), w.get(), 1.0f, 100));
    EXPECT_OK(cudaStreamWaitEvent(a, join, 0));
    EXPECT_OK(cudaMemcpyAsync(z, y, 400, cudaMemcpyDeviceToDevice, a));
  };
  step();
  EXPECT_OK(cudaStreamSynchronize(a));
  EXPECT(z.host() == std::vector<float>(100, 3));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  EXPECT_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
  step();
  EXPECT_OK(cudaStreamEndCapture(a, &graph));
  EXPECT_OK(cudaMemsetAsync(z, 0, 400, a));
  EXPECT_OK(cudaGraphInstantiate(&exec, graph, 0));
  EXPECT_OK(cudaGraphLaunch(exec, a));
  EXPECT_OK(cudaStreamSynchronize(a));
  EXPECT(z.host() == std::vector<float>(100, 3));
  EXPECT(w.host() == std::vector<float>(100, 2));
  EXPECT_OK(cudaGraphExecDestroy(exec));
  EXPECT_OK(cudaGraphDestroy(graph));
  EXPECT_OK(cudaEventDestroy(fork));
  EXPECT_OK(cudaEventDestroy(join));
  EXPECT_OK(cudaStreamDestroy(a));
  EXPECT_OK(cudaStreamDestroy(b));
}

const Test kTests[] = {{"indices of blocks and threads", indices_of_blocks_and_threads},
                       {"structs are arguments", structs_are_arguments},
                       {"a barrier orders shared memory", barrier_orders_shared_memory},
                       {"barriers combine votes", barriers_combine_votes},
                       {"reductions of rows", reductions_of_rows},
                       {"softmax with packs and dynamic memory", softmax_with_packs_and_dynamic_memory},
                       {"atomics add up", atomics_add_up},
                       {"an atomic takes the largest", an_atomic_takes_the_largest},
                       {"a lock between blocks", a_lock_between_blocks},
                       {"the last block adds in order", last_block_adds_in_order},
                       {"a grid barrier joins blocks", grid_barrier_joins_blocks},
                       {"shuffles read the right lane", shuffles_read_the_right_lane},
                       {"votes of two halves of a warp", votes_of_two_halves_of_a_warp},
                       {"copies arrive when they are waited for", copies_arrive_when_waited_for},
                       {"products of tensor cores", products_of_tensor_cores},
                       {"graphs replay what was captured", graphs_replay_what_was_captured},
                       {"a node of a graph changes", a_node_of_a_graph_changes},
                       {"copies from pageable memory are staged", copies_from_pageable_memory_are_staged},
                       {"events order streams", events_order_streams},
#if !defined(__CUDACC__)
                       CUDASIM_FINDINGS
#endif
};

}  // namespace

int main(int count, char** arguments) {
#if !defined(__CUDACC__)
  if (count == 3 && std::strcmp(arguments[1], "--plant") == 0) return plant(arguments[2]);
  if (count == 2 && std::strcmp(arguments[1], "--speed") == 0) return measure_speed();
#endif
  return run_tests(kTests, count > 1 ? arguments[1] : nullptr) != 0;
}
