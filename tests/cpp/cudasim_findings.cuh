// The bugs that the simulator must find: a table of tests with planted bugs, and of programs that it must stop.
#pragma once

#include <unistd.h>

#include <chrono>

#include "cudasim_bugs.cuh"
#include "cudasim_harness.h"

// ---- under several schedules

// Sets an environment variable, and restores its previous value when destroyed.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Returns the number of random schedules, out of 8, whose result differs from `right` in any bit.
template <class Run> int schedules_that_differ(const std::vector<float>& right, Run run) {
  int differ = 0;
  for (int seed = 1; seed <= 8; ++seed) {
    const Environment environment("CUDASIM_SEED", std::to_string(seed));
    differ += !same_bits(run(), right);
  }
  return differ;
}

template <class... E> std::vector<float> run_bug(void (*kernel)(E...)) {
  Device<float> out(4 * kBlock);
  if constexpr (sizeof...(E) == 2) {
    Device<int> state(1, 0);
    EXPECT_OK(Launch(4, kBlock)(kernel, state.get(), out.get()));
    return out.host();
  } else {
    EXPECT_OK(Launch(4, kBlock)(kernel, out.get()));
    return out.host();
  }
}

// Checks that the buggy kernel gives a wrong result in some schedule, and that the fixed one gives the same bits in all of them.
template <class Kernel> void depends_on_the_schedule(Kernel buggy, Kernel fixed) {
  const Environment environment("CUDASIM_SEED", "0");
  const std::vector<float> right = run_bug(fixed);
  EXPECT(schedules_that_differ(right, [&] { return run_bug(buggy); }) > 0);
  EXPECT(schedules_that_differ(right, [&] { return run_bug(fixed); }) == 0);
}

inline void finds_a_missing_barrier_before_a_read() {
  depends_on_the_schedule(no_barrier_before_read<false>, no_barrier_before_read<true>);
}
inline void finds_a_missing_barrier_before_a_write() {
  depends_on_the_schedule(no_barrier_before_write<false>, no_barrier_before_write<true>);
}
inline void finds_a_missing_warp_barrier() { depends_on_the_schedule(no_warp_barrier<false>, no_warp_barrier<true>); }
inline void finds_an_order_of_blocks() { depends_on_the_schedule(blocks_in_order<false>, blocks_in_order<true>); }

inline void schedules_repeat() {
  const Environment environment("CUDASIM_SEED", "5");
  const Environment threads("CUDASIM_THREADS", "1");
  int differ = 0;
  for (int k = 0; k < 6; ++k)
    differ += !same_bits(run_bug(no_barrier_before_read<false>), run_bug(no_barrier_before_read<false>));
  EXPECT(differ > 0);  // every launch has a different schedule
  for (const unsigned block : {0u, 7u}) {
    cudasim::Schedule a(5, 3, block), b(5, 3, block);
    cudasim::Ready ready;
    for (unsigned warp = 0; warp < 4; ++warp) ready.add(warp, 0xf0f0u);
    for (int k = 0; k < 100; ++k) EXPECT(a.next(ready, 0) == b.next(ready, 0));
  }
}

// Without a wait for the stream, the host reads the old values in some schedule.
inline void finds_a_missing_wait_for_a_stream() {
  int early = 0;
  for (int seed = 1; seed <= 8; ++seed) {
    const Environment environment("CUDASIM_SEED", std::to_string(seed));
    cudaStream_t stream;
    EXPECT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Device<float> x(4, 1.0f), y(4, 0.0f);
    EXPECT_OK(Launch(1, 4, 0, stream)(axpy, x.get(), y.get(), 1.0f, 4));
    early += y.host()[0] == 0;  // copies by the legacy stream
    EXPECT_OK(cudaStreamSynchronize(stream));
    EXPECT(y.host()[0] == 1);
    EXPECT_OK(cudaStreamDestroy(stream));
  }
  EXPECT(early > 0);
}

// ---- NaN in unwritten memory

inline bool all_nan(const std::vector<float>& x) {
  for (const float v : x) {
    if (v == v) return false;
  }
  return true;
}

inline void unwritten_memory_is_nan() {
  Device<float> x(50);
  EXPECT(all_nan(x.host()));
  EXPECT_OK(Launch(1, 64)(last_element_unwritten, x.get(), 50));
  const std::vector<float> got = x.host();
  for (size_t i = 0; i < 50; ++i) EXPECT(i == 49 ? got[i] != got[i] : got[i] == 1);
}

inline void unwritten_shared_memory_is_nan_in_every_block() {
  Device<float> x(3 * 2 * kBlock), y(3 * 32);
  EXPECT_OK(Launch(3, kBlock, kBlock * sizeof(float))(reads_shared_memory_first, x.get()));
  EXPECT(all_nan(x.host()));
  EXPECT_OK(Launch(3, 32)(reads_shared_memory_of_a_template, y.get()));
  EXPECT(all_nan(y.host()));
}

inline void shuffles_from_absent_lanes_are_nan() {
  Device<float> x(32, 0.0f);
  EXPECT_OK(Launch(1, 32)(shuffle_from_exited_lanes, x.get()));
  std::vector<float> got = x.host();
  for (size_t i = 0; i < 32; ++i) EXPECT(i % 2 ? got[i] == 0 : i < 16 ? got[i] != got[i] : got[i] == 1);
  EXPECT_OK(Launch(1, 32)(shuffle_from_lanes_outside_the_mask, x.get()));
  got = x.host();
  for (size_t i = 0; i < 16; ++i) EXPECT(i < 8 ? got[i] == 1 : got[i] != got[i]);
}

inline void copies_not_waited_for_are_nan() {
  const std::vector<float> x(256, 1);
  Device<float> dx(x), dy(x.size());
  EXPECT_OK(Launch(1, 32)(staged, reinterpret_cast<const float4*>(dx.get()), reinterpret_cast<float4*>(dy.get()), 2, false));
  EXPECT(all_nan(dy.host()));
}

// ---- errors that a launch or a call returns

inline void launches_have_limits() {
  Device<float> x(8);
  const auto error = [&](dim3 blocks, dim3 threads, size_t dynamic) {
    const cudaError_t returned = Launch(blocks, threads, dynamic)(last_element_unwritten, x.get(), 0);
    EXPECT(cudaGetLastError() == returned && cudaPeekAtLastError() == cudaSuccess);
    return returned;
  };
  EXPECT(error(1, 1024, 0) == cudaSuccess);
  EXPECT(error(1, 1025, 0) == cudaErrorInvalidConfiguration);
  EXPECT(error(1, dim3(32, 32, 2), 0) == cudaErrorInvalidConfiguration);
  EXPECT(error(1, dim3(1, 1, 65), 0) == cudaErrorInvalidConfiguration);
  EXPECT(error(0, 32, 0) == cudaErrorInvalidConfiguration);
  EXPECT(error(dim3(1, 65536), 32, 0) == cudaErrorInvalidConfiguration);
  EXPECT(error(1, 32, 48 << 10) == cudaSuccess);
  EXPECT(error(1, 32, (48 << 10) + 4) == cudaErrorInvalidValue);
  EXPECT_OK(cudaFuncSetAttribute(last_element_unwritten, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
  EXPECT(error(1, 32, 227 << 10) == cudaSuccess);
  EXPECT(cudaFuncSetAttribute(reads_shared_memory_first, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10) ==
         cudaErrorInvalidValue);  // with the kernel's static variables it would exceed the limit
  EXPECT(Launch(16 * 2 + 1, 1024).cooperative()(last_element_unwritten, x.get(), 0) == cudaErrorCooperativeLaunchTooLarge);
  EXPECT(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);
  EXPECT(std::string(cudaGetErrorName(cudaErrorInvalidConfiguration)) == "cudaErrorInvalidConfiguration");
}

inline void copies_have_bounds() {
  Device<float> x(8, 1.0f);
  float host[8], *freed = nullptr;
  EXPECT(cudaMemcpy(host, x + 1, 32, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(x, host, 33, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(x, host, 32, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  EXPECT(cudaMemset(x, 0, 33) == cudaErrorInvalidValue);
  EXPECT_OK(cudaMalloc(&freed, 16));
  EXPECT_OK(cudaFree(freed));
  EXPECT(cudaFree(freed) == cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(host, freed, 16, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  EXPECT(cudaMalloc(&freed, size_t{1} << 50) == cudaErrorMemoryAllocation);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
}

inline void captures_refuse_what_waits() {
  cudaStream_t stream, blocking;
  cudaGraph_t graph;
  cudaEvent_t event;
  Device<float> x(4, 1.0f), y(4, 0.0f);
  EXPECT_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  EXPECT_OK(cudaStreamCreate(&blocking));
  EXPECT_OK(cudaEventCreate(&event));
  const auto begin = [&](cudaStream_t s) { EXPECT_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal)); };
  begin(stream);
  EXPECT(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported);
  EXPECT(Launch(1, 4, 0, stream)(axpy, x.get(), y.get(), 1.0f, 4) == cudaErrorStreamCaptureInvalidated);
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated && !graph);
  begin(stream);
  void* p = nullptr;
  EXPECT(cudaMalloc(&p, 4) == cudaErrorStreamCaptureUnsupported);
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  begin(blocking);
  EXPECT(Launch(1, 4)(axpy, x.get(), y.get(), 1.0f, 4) == cudaErrorStreamCaptureImplicit);
  EXPECT(cudaStreamEndCapture(blocking, &graph) == cudaErrorStreamCaptureInvalidated);
  begin(stream);
  EXPECT_OK(cudaEventRecord(event, stream));
  EXPECT_OK(cudaStreamWaitEvent(blocking, event, 0));
  EXPECT_OK(Launch(1, 4, 0, blocking)(axpy, x.get(), y.get(), 1.0f, 4));
  EXPECT(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureUnjoined);
  EXPECT(cudaGetLastError() == cudaErrorStreamCaptureUnjoined);
  EXPECT(y.host()[0] == 0);
  EXPECT_OK(cudaEventDestroy(event));
  EXPECT_OK(cudaStreamDestroy(stream));
  EXPECT_OK(cudaStreamDestroy(blocking));
}

// ---- programs that must be stopped

struct Planted {
  const char *name, *message;
  void (*run)();
};

inline void out_of_bounds() {
  Device<float> x(100);
  Launch(1, 128)(one_too_many, x.get(), 100);
}
inline void after_free() {
  Device<float> big(9 << 20);
  float* freed = nullptr;
  cudaMalloc(&freed, 400);
  cudaFree(freed);
  Launch(1, 128)(one_too_many, freed, 99);
}
template <void (*kernel)(), unsigned blocks = 1, bool cooperative = false> void run_planted() {
  Launch launch(blocks, 64);
  if (cooperative) launch.cooperative();
  launch(kernel);
}
template <void (*kernel)(float*)> void run_planted_on_64() {
  Device<float> x(65, 0.0f);
  Launch(1, 64, 256)(kernel, x.get());
}

#if defined(__SANITIZE_ADDRESS__)
constexpr const char *kBeyond = "heap-buffer-overflow", *kFreed = "heap-use-after-free";
#else
constexpr const char *kBeyond = "wrote beyond the end", *kFreed = "after it was freed";
#endif

constexpr Planted kPlanted[] = {
    {"barrier in a branch", "divergent barrier", run_planted<barrier_in_a_branch>},
    {"barriers in two branches", "divergent barrier: this thread is at", run_planted<barriers_in_two_branches>},
    {"exit before a barrier", "exit_before_a_barrier(), block (0, 0, 0), thread (", run_planted<exit_before_a_barrier>},
    {"lanes that wait for each other", "deadlock: warp 0 has mask 0xffffffff, but lanes 0x00000020",
     run_planted<lanes_that_wait_for_each_other>},
    {"mask without the caller", "lacks the calling lane", run_planted<mask_without_the_caller>},
    {"two collectives at once", "divergent warp", run_planted<two_collectives_at_once>},
    {"grid barrier without a block", "divergent grid barrier", run_planted<grid_barrier_without_block_2, 4, true>},
    {"grid barrier of a plain launch", "not cooperative", run_planted<grid_barrier>},
    {"misaligned pack", "misaligned",
     [] {
       Device<float> x(8, 0.0f), y(1);
       Launch(1, 1)(misaligned_pack, x.get(), y.get());
       cudaDeviceSynchronize();
     }},
    {"out of bounds", kBeyond, out_of_bounds},
    {"after free", kFreed, after_free},
#if defined(__SANITIZE_ADDRESS__)
    {"dynamic memory beyond its end", "use-after-poison", run_planted_on_64<dynamic_memory_beyond_its_end>},
    {"static memory beyond its end", "index 64 out of bounds", run_planted_on_64<static_memory_beyond_its_end>},
    {"stack overflow", "stack-overflow",
     [] {
       Device<int> x(1, 0);
       Launch(1, 1)(stack_overflow, x.get());
       cudaDeviceSynchronize();
     }},
#else
    {"stack overflow", "",
     [] {
       Device<int> x(1, 0);
       Launch(1, 1)(stack_overflow, x.get());
       cudaDeviceSynchronize();
     }},
#endif
};

// Runs one planted bug. Returns only if the simulator did not stop the program.
inline int plant(const char* name) {
  for (const Planted& bug : kPlanted) {
    if (std::strcmp(bug.name, name) != 0) continue;
    bug.run();
    cudaDeviceSynchronize();
    std::printf("not stopped\n");
  }
  return 0;
}

// The work of a late stream is done only when another stream or the host waits for it.
inline void late_streams_are_late() {
  cudaStream_t late, other;
  cudaEvent_t event;
  EXPECT_OK(cudaStreamCreateWithFlags(&late, cudaStreamNonBlocking));
  EXPECT_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  EXPECT_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  EXPECT_OK(cudasim::make_late(late, true));
  for (const bool waits : {false, true}) {
    Device<float> x(100, 1.0f), y(100, 0.0f), z(100, 0.0f);
    EXPECT_OK(Launch(1, 100, 0, late)(axpy, x.get(), y.get(), 3.0f, 100));
    EXPECT_OK(cudaEventRecord(event, late));
    EXPECT(cudaEventQuery(event) == cudaErrorNotReady);
    if (waits) EXPECT_OK(cudaStreamWaitEvent(other, event, 0));
    EXPECT_OK(Launch(1, 100, 0, other)(axpy, y.get(), z.get(), 1.0f, 100));
    EXPECT_OK(cudaStreamSynchronize(other));
    EXPECT(z.host() == std::vector<float>(100, waits ? 3 : 0));
    EXPECT_OK(cudaStreamSynchronize(late));
    EXPECT(y.host() == std::vector<float>(100, 3));
    EXPECT_OK(cudaEventQuery(event));
  }
  EXPECT_OK(cudaEventDestroy(event));
  EXPECT_OK(cudaStreamDestroy(late));
  EXPECT_OK(cudaStreamDestroy(other));
}

inline void errors_come_on_demand() {
  setenv("CUDASIM_FAIL", "cudaGraphInstantiate=801,cudaMalloc=2", 1);
  void* p = nullptr;
  EXPECT(cudaMalloc(&p, 4) == cudaErrorMemoryAllocation);
  cudaGraphExec_t exec;
  EXPECT(cudaGraphInstantiate(&exec, nullptr, 0) == cudaErrorNotSupported);
  unsetenv("CUDASIM_FAIL");
  EXPECT(cudaGetLastError() == cudaErrorNotSupported);
  EXPECT_OK(cudaMalloc(&p, 4));
  EXPECT_OK(cudaFree(p));
  setenv("CUDASIM_BYTES", "1000000", 1);
  size_t free = 0, total = 0;
  EXPECT_OK(cudaMemGetInfo(&free, &total));
  EXPECT(total == 1000000 && free <= total);
  EXPECT(cudaMalloc(&p, 1000001) == cudaErrorMemoryAllocation);
  unsetenv("CUDASIM_BYTES");
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
}

inline void stops_planted_bugs() {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  EXPECT(length > 0);
  for (const Planted& bug : kPlanted) {
    const std::string command = "'" + std::string(self, size_t(length)) + "' --plant '" + bug.name + "' 2>&1";
    FILE* pipe = popen(("exec " + command).c_str(), "r");
    std::string output;
    for (char text[512]; std::fgets(text, sizeof text, pipe);) output += text;
    const int status = pclose(pipe);
    expect(status != 0 && output.find("not stopped") == std::string::npos, "the bug was not stopped", bug.name, 0);
    expect(output.find(bug.message) != std::string::npos, ("the message was: " + output).c_str(), bug.name, 0);
  }
}

#define CUDASIM_FINDINGS                                                                                                      \
  {"finds a missing barrier before a read", finds_a_missing_barrier_before_a_read},                                           \
      {"finds a missing barrier before a write", finds_a_missing_barrier_before_a_write},                                     \
      {"finds a missing warp barrier", finds_a_missing_warp_barrier}, {"finds an order of blocks", finds_an_order_of_blocks}, \
      {"finds a missing wait for a stream", finds_a_missing_wait_for_a_stream}, {"schedules repeat", schedules_repeat},       \
      {"unwritten memory is NaN", unwritten_memory_is_nan},                                                                   \
      {"unwritten shared memory is NaN", unwritten_shared_memory_is_nan_in_every_block},                                      \
      {"shuffles from absent lanes are NaN", shuffles_from_absent_lanes_are_nan},                                             \
      {"copies that are not waited for are NaN", copies_not_waited_for_are_nan},                                              \
      {"launches have limits", launches_have_limits}, {"copies have bounds", copies_have_bounds},                             \
      {"captures refuse what waits", captures_refuse_what_waits}, {"stops planted bugs", stops_planted_bugs},                 \
      {"late streams are late", late_streams_are_late}, {"errors come on demand", errors_come_on_demand},

// ---- speed

template <class Run> void measure(const char* name, double threads, Run run) {
  run();
  int repeats = 1;
  for (double seconds = 0; seconds < 0.3; repeats *= 2) {
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < repeats; ++k) run();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (seconds >= 0.3)
      std::printf("%-40s %8.1f us %8.2f M threads/s\n", name, seconds / repeats * 1e6, threads * repeats / seconds / 1e6);
  }
}

inline int measure_speed() {
  const int n = 1 << 20;
  Device<float> x(size_t{n}, 1.0f), y(size_t{n}, 1.0f), partial(64), out(1);
  Device<unsigned> ticket(1, 0u);
  measure("axpy, 1 M threads that never wait", n, [&] {
    Launch(n / 256, 256)(axpy, x.get(), y.get(), 0.5f, n);
    cudaDeviceSynchronize();
  });
  measure("softmax 64 x 1000, 128 threads a row", 64 * kBlock, [&] {
    Launch(64, kBlock, 4000)(softmax, reinterpret_cast<const float4*>(x.get()), reinterpret_cast<float4*>(y.get()), 250);
    cudaDeviceSynchronize();
  });
  measure("sum of 64000 by 37 blocks", 37 * kBlock, [&] {
    Launch(37, kBlock)(ordered_sum, x.get(), 64000, partial.get(), ticket.get(), out.get());
    cudaDeviceSynchronize();
  });
  measure("product 64 x 128 x 784 in tf32", 64 * 32, [&] {
    Launch(dim3(16, 4), 32)(product_tf32, x.get(), x.get(), y.get(), 128, 784);
    cudaDeviceSynchronize();
  });
  measure("an empty launch", 1, [&] { Launch(1, 1)(last_element_unwritten, y.get(), 0); });
  return 0;
}
