// The door on a GPU: performs a launch by adding its kernel to the stream. Marks are events in the stream.
#include "launch/door.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "cuda/gemm.h"
#include "cuda/launch.cuh"
#include "families/matmul.h"
#include "launch/clock.h"
#include "launch/denormals.h"

namespace pb {
namespace {

// PULLBACK_CUDA_SYNC=1 waits for every kernel, so that the op that caused an error raises it.
bool waits() {
  static const bool asked = [] {
    const char* text = std::getenv("PULLBACK_CUDA_SYNC");
    return text && *text && *text != '0';
  }();
  return asked;
}

// The event that times are measured from, and its host time. The first mark after all earlier marks have been read records it
// again.
struct Clock {
  cudaEvent_t zero = nullptr;
  int64_t zero_ns = 0;
  int pending = 0;
  std::vector<cudaEvent_t> free;
};
thread_local Clock timing;

cudaEvent_t new_event() {
  if (!timing.free.empty()) {
    const cudaEvent_t event = timing.free.back();
    timing.free.pop_back();
    return event;
  }
  cudaEvent_t event;
  cuda::check(cudaEventCreate(&event), "making an event");
  return event;
}

}  // namespace

// In a forked child, which can neither create events nor run anything on the GPU, marks are host times, negated to tell them from
// events. Marks that the parent made before the fork read as the time of the zero event.
int64_t mark() {
  if (!cuda::usable()) return -host_time();
  if (timing.pending == 0) {
    if (!timing.zero) timing.zero = new_event();
    cuda::check(cudaEventRecord(timing.zero, cuda::stream()), "recording an event");
    cuda::check(cudaEventSynchronize(timing.zero), "waiting for an event");
    timing.zero_ns = host_time();
  }
  const cudaEvent_t event = new_event();
  cuda::check(cudaEventRecord(event, cuda::stream()), "recording an event");
  ++timing.pending;
  return int64_t(reinterpret_cast<intptr_t>(event));
}

int64_t time_of(int64_t mark) {
  if (mark < 0) return -mark;
  if (!cuda::usable()) return timing.zero_ns;
  const auto event = reinterpret_cast<cudaEvent_t>(intptr_t(mark));
  float milliseconds = 0;
  cuda::check(cudaEventSynchronize(event), "waiting for an event");
  cuda::check(cudaEventElapsedTime(&milliseconds, timing.zero, event), "reading an event");
  timing.free.push_back(event);
  --timing.pending;
  return timing.zero_ns + int64_t(double(milliseconds) * 1e6);
}

// The products of a launch have as many FLOPs each, and a result each that is a matrix.
bool multiplies_in_tf32(const Launch& launch, const Attribution& attribution, double flops) {
  const auto precision = kernels::Precision(attribution.precision);
  if (precision != kernels::Precision::tf32 || flops == 0) return false;
  int products = 0;
  for (int k = 0; k < launch.outputs; ++k) products += launch.out(k).ndim > 1 && launch.out(k).size() > 0;
  return cuda::by_tensor_cores(DType::f32, precision, int64_t(flops / 2 / std::max(products, 1)));
}

void perform(const Launch& launch) {
  cuda::throw_fault();
#if defined(PB_CUDASIM)
  run_flushed(launch);  // flushes denormals, as nvcc's -ftz=true does
#else
  launch.kernel->run(launch);
#endif
  if (waits()) cuda::synchronize();
}

}  // namespace pb
