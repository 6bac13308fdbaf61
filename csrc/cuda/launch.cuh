// start(), through which every kernel is launched, and the working memory of launches.
#pragma once
#include "cuda/block.h"
#include "cuda/device.h"
#include "cuda/runtime.h"
#include "launch/failure.h"
#include "launch/memory.h"

namespace pb::cuda {

// Throws OutOfMemory or Failure for an error that a CUDA call returned. doing: the subject of the message.
[[noreturn]] void fail(cudaError_t error, const char* doing);
inline void check(cudaError_t error, const char* doing) {
  if (__builtin_expect(error != cudaSuccess, 0)) fail(error, doing);
}

// Allows this thread, for the lifetime of the object, calls that a capture by another thread would otherwise forbid, such as
// allocating memory. These calls do not belong to that capture, and a refused call would invalidate it.
class BesideCaptures {
 public:
  BesideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

constexpr size_t kSharedWithoutAsking = 48 << 10;  // bytes of dynamic shared memory that a block may use without opting in

// Returns true the first time that a kernel on the current device needs that many bytes of dynamic shared memory.
bool needs_more_shared(const void* kernel, size_t bytes);

// Runs `kernel` in `blocks` blocks of `threads` threads on the current device's stream. Does nothing if there are no blocks.
template <class... E, class... A>
inline void start(void (*kernel)(E...), dim3 blocks, dim3 threads, size_t shared, const A&... arguments) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  if (shared > kSharedWithoutAsking && needs_more_shared(reinterpret_cast<const void*>(kernel), shared))
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)), "asking for shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = threads, config.dynamicSmemBytes = shared, config.stream = stream();
  check(cudaLaunchKernelEx(&config, kernel, arguments...), "a launch");
}

// Returns a one-dimensional grid of blocks of `of` threads each, with at least `threads` threads.
inline dim3 blocks_for(int64_t threads, int64_t of = kThreads) {
  const int64_t blocks = (threads + of - 1) / of;
  if (blocks > kMaxBlocks) throw Failure("more elements than a grid has threads");
  return dim3(unsigned(blocks));
}

// Returns working memory for one launch. While a graph is being captured, the memory belongs to the graph as long as the graph
// lives.
Allocation working_memory(size_t bytes);
void give_back_working_memory(const Allocation& block);

// Working memory for one launch. The destructor gives it back without waiting, because later work of the stream runs after the
// launch.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();
  // Returns uninitialized memory for as many elements as the product of the lengths, aligned to 512 bytes.
  template <class T, class... N> T* take(N... lengths) {
    return static_cast<T*>(take_bytes(size_t(elements_of(sizeof(T), lengths...))));
  }
  void* take_bytes(size_t bytes);

 private:
  static constexpr int kMaxPieces = 16;
  Allocation pieces_[kMaxPieces];
  int count_ = 0;
};

// Reports an index outside its axis. Of the threads that report, one is chosen by an atomic operation on device memory, and that
// thread writes the fault. Atomic operations on host memory need hardware that many machines lack.
__device__ inline void report(FaultSink sink, int64_t where, int64_t index, int64_t length) {
  if (atomicCAS(sink.taken, 0u, 1u) != 0u) return;
  sink.fault->where = where, sink.fault->index = index, sink.fault->length = length;
  sink.fault->kernel = sink.kernel;
  __threadfence_system();
  *static_cast<volatile int*>(&sink.fault->set) = 1;
}

}  // namespace pb::cuda
