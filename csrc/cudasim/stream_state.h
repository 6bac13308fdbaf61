// What streams, events and graphs are inside: queues of work, and captures in progress.
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

// A node and the nodes that run before it, which have lower numbers.
struct CUgraphNode_st {
  cudasim::Work work;
  std::vector<size_t> after;
  size_t number = 0;  // the node's place in its graph
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
  std::vector<cudaStream_t> streams;  // the origin, and those that joined by an event
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool valid = true;
};

// A moment in a stream: when all that was submitted to it before is done.
struct Moment {
  bool reached = false;
  std::chrono::steady_clock::time_point time;
};

struct Queued {
  Work work;
  std::shared_ptr<Moment> wait, record;  // instead of work
};

}  // namespace cudasim

struct CUstream_st {
  bool blocking = true;  // takes turns with the legacy stream
  bool late = false;     // its work waits until nothing else can go on: see cudasim::make_late
  std::deque<cudasim::Queued> queue;
  std::shared_ptr<cudasim::Capture> capture;
  std::vector<size_t> tail;                      // while it captures: what its next node runs after
  std::vector<CUgraphNode_st*> tail_as_handles;  // the same, as cudaStreamGetCaptureInfo last returned it
};

struct CUevent_st {
  bool timing = true;
  std::shared_ptr<cudasim::Moment> moment;    // of the last record; null before the first
  std::shared_ptr<cudasim::Capture> capture;  // if it was recorded in a stream that captured
  std::vector<size_t> tail;
};

namespace cudasim {

// All streams. Every function of this file is called with the lock held.
struct Streams {
  std::recursive_mutex mutex;
  CUstream_st legacy;
  std::vector<cudaStream_t> all{&legacy};
  std::vector<std::shared_ptr<Capture>> captures;
  uint64_t seed = 0;
  Random random_numbers{0};

  // The stream of a handle: null and cudaStreamLegacy are the legacy stream. Null if there is none.
  cudaStream_t find(cudaStream_t handle);
  void enqueue(cudaStream_t stream, Queued queued);
  bool run_one();  // the first work of some stream that can go on, of a late one only if no other can; false if none can
  void go_on();    // what a query of an unfinished stream or event lets happen
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

// Ends a capture with an error: what was captured is lost.
cudaError_t invalidate(Capture& capture, cudaError_t error);

}  // namespace cudasim
