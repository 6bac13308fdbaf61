// The one way to launch a kernel.
#pragma once
#include "cuda/device.h"
#include "cuda/runtime.h"
#include "launch/failure.h"
#include "launch/memory.h"

namespace pb::cuda {

// Throws what a call of the runtime returned: OutOfMemory or Failure.
[[noreturn]] void fail(cudaError_t error, const char* doing);
inline void check(cudaError_t error, const char* doing) {
  if (__builtin_expect(error != cudaSuccess, 0)) fail(error, doing);
}

// While it lives, this thread may do what another thread's capture would otherwise forbid, such as allocating memory. That capture has
// nothing to do with these calls, and a refused call would end it.
class BesideCaptures {
 public:
  BesideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

constexpr unsigned kWarp = 32, kFull = 0xffffffffu;
constexpr unsigned kThreads = 256;  // of a block, where nothing asks for another number
constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;
constexpr size_t kSharedWithoutAsking = 48 << 10;  // bytes of dynamic shared memory of a block

// Runs `kernel` in `blocks` blocks of `threads` threads on the current device's stream; nothing where there are no blocks.
template <class... E, class... A>
inline void start(void (*kernel)(E...), dim3 blocks, dim3 threads, size_t shared, const A&... arguments) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  if (shared > kSharedWithoutAsking)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)), "asking for shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = threads, config.dynamicSmemBytes = shared, config.stream = stream();
  check(cudaLaunchKernelEx(&config, kernel, arguments...), "a launch");
}

// Blocks of kThreads threads for so many threads, one dimension.
inline dim3 blocks_for(int64_t threads, int64_t of = kThreads) {
  const int64_t blocks = (threads + of - 1) / of;
  if (blocks > kMaxBlocks) throw Failure("more elements than a grid has threads");
  return dim3(unsigned(blocks));
}

// Memory for the length of one launch; of a graph that is being made, for as long as that lives.
Allocation working_memory(size_t bytes);
void give_back_working_memory(const Allocation& block);

// Working memory for the length of one launch. It is given back at once: later work of the stream comes after.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();
  // Memory for n elements, aligned to 512 bytes, uninitialised.
  template <class T> T* take(int64_t n) { return static_cast<T*>(take_bytes(size_t(n) * sizeof(T))); }
  void* take_bytes(size_t bytes);

 private:
  static constexpr int kMaxPieces = 16;
  Allocation pieces_[kMaxPieces];
  int count_ = 0;
};

// Reports an index outside its axis. The threads choose the one that writes by an atomic on the device's own memory: atomics on
// memory of the host need hardware that many machines lack.
__device__ inline void report(FaultSink sink, int64_t where, int64_t index, int64_t length) {
  if (atomicCAS(sink.taken, 0u, 1u) != 0u) return;
  sink.fault->where = where, sink.fault->index = index, sink.fault->length = length;
  sink.fault->kernel = sink.kernel;
  __threadfence_system();
  *static_cast<volatile int*>(&sink.fault->set) = 1;
}

}  // namespace pb::cuda
