// Streams and events. In the default order work runs when it is submitted. With a seed it runs at random moments before something
// waits for it, and streams that do not wait for each other take turns at random.
#pragma once

#include <functional>

#include "cudasim/error.h"
#include "cudasim/language.h"

struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;

#define cudaStreamLegacy (reinterpret_cast<cudaStream_t>(1))
#define cudaStreamPerThread (reinterpret_cast<cudaStream_t>(2))  // means the legacy stream here

enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };

cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

namespace cudasim {

enum class WorkKind { kKernel, kMemcpy, kMemset, kHost, kGraph, kEmpty };

struct Work {
  WorkKind kind = WorkKind::kEmpty;
  std::function<void()> run;
  const void* kernel = nullptr;
  // For kernels only: returns a launch of the same kernel with a different grid and different arguments.
  std::function<Work(dim3 blocks, dim3 threads, size_t shared, void** arguments)> with = nullptr;
};

// Runs the work in the stream's order, or adds it to the graph that the stream captures.
cudaError_t submit(cudaStream_t stream, Work work);

// If `late`, the stream's work runs as late as CUDA allows, also in the default order: when the host or another stream waits for
// it. A kernel that fails to wait for this stream then reads the old contents of memory.
cudaError_t make_late(cudaStream_t stream, bool late);

// Called by functions that wait, or whose work a graph cannot hold. If the modes of this thread and of a capture forbid such calls,
// invalidates the capture and returns an error.
cudaError_t not_while_capturing();

}  // namespace cudasim
