// Implements events: moments in a stream that can be waited for, and edges of a graph between streams that capture.
#include <algorithm>
#include <memory>

#include "cudasim/stream_state.h"

using cudasim::Lock;
using cudasim::Moment;
using cudasim::report;
using cudasim::streams;

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (!event) return report(cudaErrorInvalidValue);
  *event = new CUevent_st;
  (*event)->timing = !(flags & cudaEventDisableTiming);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event) return report(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  const Lock lock(streams().mutex);
  cudaStream_t stream = streams().find(handle);
  if (!stream || !event) return report(cudaErrorInvalidResourceHandle);
  event->capture = stream->capture;
  event->tail = stream->tail;
  event->moment = nullptr;
  if (stream->capture) return cudaSuccess;
  event->moment = std::make_shared<Moment>();
  streams().enqueue(stream, {{}, nullptr, event->moment});
  return cudaSuccess;
}

static cudaError_t wait_in_capture(cudaStream_t stream, cudaEvent_t event) {
  if (!event->capture) return cudasim::invalidate(*stream->capture, cudaErrorStreamCaptureIsolation);
  cudasim::Capture& capture = *event->capture;
  if (!capture.valid) return report(cudaErrorStreamCaptureInvalidated);
  if (stream->capture && stream->capture != event->capture)
    return cudasim::invalidate(capture, cudaErrorStreamCaptureIsolation);
  if (!stream->capture) {
    if (stream == &streams().legacy) return cudasim::invalidate(capture, cudaErrorStreamCaptureImplicit);
    stream->capture = event->capture;
    stream->tail.clear();
    capture.streams.push_back(stream);
  }
  for (const size_t node : event->tail) {
    if (std::find(stream->tail.begin(), stream->tail.end(), node) == stream->tail.end()) stream->tail.push_back(node);
  }
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const Lock lock(streams().mutex);
  cudaStream_t stream = streams().find(handle);
  if (!stream || !event) return report(cudaErrorInvalidResourceHandle);
  if (stream->capture || event->capture) return wait_in_capture(stream, event);
  if (event->moment) streams().enqueue(stream, {{}, event->moment, nullptr});
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(streams().mutex);
  if (!event) return report(cudaErrorInvalidResourceHandle);
  if (event->capture) return cudasim::invalidate(*event->capture, cudaErrorCapturedEvent);
  if (event->moment) streams().drain_until(*event->moment);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(streams().mutex);
  if (!event) return report(cudaErrorInvalidResourceHandle);
  if (event->capture) return cudasim::invalidate(*event->capture, cudaErrorCapturedEvent);
  if (!event->moment || event->moment->reached) return cudaSuccess;
  streams().go_on();
  return cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const Lock lock(streams().mutex);
  if (!milliseconds) return report(cudaErrorInvalidValue);
  for (const cudaEvent_t event : {begin, end}) {
    if (!event || !event->timing || !event->moment) return report(cudaErrorInvalidResourceHandle);
    if (!event->moment->reached) return cudaErrorNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->moment->time - begin->moment->time).count();
  return cudaSuccess;
}
