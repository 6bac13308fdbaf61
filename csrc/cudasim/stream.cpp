// Implements the queues of streams, and the order in which their work runs.
#include "cudasim/stream.h"

#include <algorithm>
#include <utility>

#include "cudasim/stream_state.h"

namespace cudasim {

Streams& streams() {
  static Streams& all = *new Streams;  // never destroyed, because destructors of the program may use it
  return all;
}

cudaStream_t Streams::find(cudaStream_t handle) {
  if (!handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return &legacy;
  return std::find(all.begin(), all.end(), handle) == all.end() ? nullptr : handle;
}

bool Streams::ready(const CUstream_st& stream) {
  return !stream.queue.empty() && (!stream.queue.front().wait || stream.queue.front().wait->reached);
}

void Streams::run_first(cudaStream_t stream) {
  const Queued first = std::move(stream->queue.front());
  stream->queue.pop_front();
  if (first.work.run) first.work.run();
  if (first.record) {
    first.record->reached = true;
    first.record->time = std::chrono::steady_clock::now();
  }
}

bool Streams::run_one_of(bool late) {
  const unsigned count = unsigned(all.size()), first = random_numbers.below(count);
  for (unsigned k = 0; k < count; ++k) {
    cudaStream_t stream = all[(first + k) % count];
    if (stream->late != late || !ready(*stream)) continue;
    run_first(stream);
    return true;
  }
  return false;
}

bool Streams::run_one() { return run_one_of(false) || run_one_of(true); }

// A query is not a wait, so it does not run the work of late streams. But a host that queries repeatedly does wait, so every
// kPatience-th query that finds no other work runs some of theirs.
void Streams::go_on() {
  constexpr unsigned kPatience = 64;
  if (!run_one_of(false) && ++queries % kPatience == 0) run_one_of(true);
}

void Streams::drain(cudaStream_t stream) {
  while (!stream->queue.empty() && run_one()) continue;
}

void Streams::drain_blocking() {
  for (cudaStream_t stream : all) {
    if (stream->blocking) drain(stream);
  }
}

void Streams::drain_until(const Moment& moment) {
  while (!moment.reached && run_one()) continue;
}

void Streams::drain_all() {
  while (run_one()) continue;
}

void Streams::enqueue(cudaStream_t stream, Queued queued) {
  // The legacy stream and the blocking streams wait for each other.
  if (stream == &legacy) drain_blocking();
  if (stream != &legacy && stream->blocking) drain(&legacy);
  stream->queue.push_back(std::move(queued));
  const uint64_t now = Options::from_environment().seed;
  if (now != std::exchange(seed, now)) random_numbers = Random(now);
  if (seed == 0 && !stream->late) return drain(stream);
  while (seed != 0 && random_numbers.below(2) && run_one_of(false)) continue;
}

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  capture.valid = false;
  return report(error);
}

static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t not_while_capturing() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const Lock lock(streams().mutex);
  for (const auto& capture : streams().captures) {
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    const bool others = capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (others || capture->thread == std::this_thread::get_id()) {
      return invalidate(*capture, cudaErrorStreamCaptureUnsupported);
    }
  }
  return cudaSuccess;
}

// Invalidates a capture of a blocking stream, and returns its error, if `stream` is the legacy stream. Work of the legacy stream
// would have to wait for the blocking stream, and captured work never runs.
static cudaError_t not_beside_a_capture(const CUstream_st* stream) {
  if (stream != &streams().legacy) return cudaSuccess;
  for (const auto& capture : streams().captures) {
    for (const cudaStream_t other : capture->streams) {
      if (other->blocking) return invalidate(*capture, cudaErrorStreamCaptureImplicit);
    }
  }
  return cudaSuccess;
}

cudaError_t submit(cudaStream_t handle, Work work) {
  const Lock lock(streams().mutex);
  cudaStream_t stream = streams().find(handle);
  if (!stream) return report(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    if (!stream->capture->valid) return report(cudaErrorStreamCaptureInvalidated);
    auto& nodes = stream->capture->graph.nodes;
    nodes.push_back({std::move(work), stream->tail, nodes.size()});
    stream->tail = {nodes.size() - 1};
    return cudaSuccess;
  }
  if (const cudaError_t error = not_beside_a_capture(stream)) return error;
  streams().enqueue(stream, {std::move(work), nullptr, nullptr});
  return cudaSuccess;
}

cudaError_t make_late(cudaStream_t handle, bool late) {
  const Lock lock(streams().mutex);
  cudaStream_t stream = streams().find(handle);
  if (!stream) return report(cudaErrorInvalidResourceHandle);
  stream->late = late;
  return cudaSuccess;
}

}  // namespace cudasim

using cudasim::Lock;
using cudasim::report;
using cudasim::streams;

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (!mode) return report(cudaErrorInvalidValue);
  std::swap(*mode, cudasim::thread_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (!stream || flags > cudaStreamNonBlocking) return report(cudaErrorInvalidValue);
  const Lock lock(streams().mutex);
  *stream = new CUstream_st;
  (*stream)->blocking = flags != cudaStreamNonBlocking;
  streams().all.push_back(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const Lock lock(streams().mutex);
  cudaStream_t stream = streams().find(handle);
  if (!stream || stream == &streams().legacy) return report(cudaErrorInvalidResourceHandle);
  if (stream->capture) return cudasim::invalidate(*stream->capture, cudaErrorIllegalState);
  streams().drain(stream);
  auto& all = streams().all;
  all.erase(std::find(all.begin(), all.end(), stream));
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const Lock lock(streams().mutex);
  cudaStream_t stream = streams().find(handle);
  if (!stream) return report(cudaErrorInvalidResourceHandle);
  if (stream->capture) return cudasim::invalidate(*stream->capture, cudaErrorStreamCaptureUnsupported);
  if (const cudaError_t error = cudasim::not_beside_a_capture(stream)) return error;
  if (stream == &streams().legacy) streams().drain_blocking();
  streams().drain(stream);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = cudasim::not_while_capturing()) return error;
  const Lock lock(streams().mutex);
  streams().drain_all();
  return cudaSuccess;
}
