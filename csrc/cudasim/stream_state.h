// The internal state of streams, events and graphs: queues of work, and captures in progress.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cudasim/graph.h"
#include "cudasim/schedule.h"
#include "cudasim/stream.h"

// A node of a graph, with the numbers of the nodes that it depends on, which are lower than its own.
struct CUgraphNode_st {
  cudasim::Work work;
  std::vector<size_t> after;
  size_t number = 0;  // the node's index in its graph
};

struct CUgraph_st {
  std::deque<CUgraphNode_st> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const CUgraph_st> graph;
};

namespace cudasim {

struct Capture {
  CUgraph_st graph;
  cudaStream_t origin;
  std::vector<cudaStream_t> streams;  // the origin, and the streams that joined by waiting for an event
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool valid = true;
};

// A moment in a stream. It is reached when all work that was submitted to the stream before is done.
struct Moment {
  bool reached = false;
  std::chrono::steady_clock::time_point time;
};

struct Queued {
  Work work;
  std::shared_ptr<Moment> wait, record;  // set if the entry waits for or records an event, and has no work
};

}  // namespace cudasim

struct CUstream_st {
  bool blocking = true;  // waits for the legacy stream, and the legacy stream for it
  bool late = false;     // its work runs only when no other work is ready: see cudasim::make_late
  std::deque<cudasim::Queued> queue;
  std::shared_ptr<cudasim::Capture> capture;
  std::vector<size_t> tail;                      // while it captures: the nodes that its next node depends on
  std::vector<CUgraphNode_st*> tail_as_handles;  // the tail that cudaStreamGetCaptureInfo returned last
};

struct CUevent_st {
  bool timing = true;
  std::shared_ptr<cudasim::Moment> moment;    // the last recorded moment; null before it, and if the stream captured
  std::shared_ptr<cudasim::Capture> capture;  // the capture of the stream in which the event was last recorded, or null
  std::vector<size_t> tail;
};

namespace cudasim {

// All streams. Callers of its functions, and of invalidate(), hold the mutex.
struct Streams {
  std::recursive_mutex mutex;
  CUstream_st legacy;
  std::vector<cudaStream_t> all{&legacy};
  std::vector<std::shared_ptr<Capture>> captures;
  uint64_t seed = 0;
  Random random_numbers{0};

  // Returns the stream of a handle, or null if there is none. The handles null, cudaStreamLegacy and cudaStreamPerThread mean the
  // legacy stream.
  cudaStream_t find(cudaStream_t handle);
  void enqueue(cudaStream_t stream, Queued queued);
  bool run_one();  // runs the first work of a ready stream, of a late one only if no other is ready; false if none is
  void go_on();    // lets work proceed while the host queries an unfinished stream or event
  void drain(cudaStream_t stream);
  void drain_blocking();
  void drain_until(const Moment& moment);
  void drain_all();

 private:
  static bool ready(const CUstream_st& stream);
  void run_first(cudaStream_t stream);
  bool run_one_of(bool late);
  unsigned queries = 0;
};

Streams& streams();
using Lock = std::lock_guard<std::recursive_mutex>;

// Makes a capture invalid, so that no graph comes of it. Reports and returns the error.
cudaError_t invalidate(Capture& capture, cudaError_t error);

}  // namespace cudasim
