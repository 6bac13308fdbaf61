// The threads of the CPU backend: one small pool that sleeps when there is nothing to do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace pb::cpu {

// Threads that share a loop, the caller included. Default: PULLBACK_NUM_THREADS, or the CPUs this process may use.
int thread_count();
void set_thread_count(int count);  // at least 1; takes effect from the next loop on

// Returns the number of CPUs in the affinity mask of this process, or the least quota of its control groups if that is less.
// root: as for cgroup_folders().
int usable_cpus(const std::string& root);

// How a loop over n is cut: a function of n, grain and thread_count() alone, so that a reduction over chunks gives the
// same bits whoever runs them, also where the loop runs inline. No chunk is shorter than grain, but for the last.
struct Chunks {
  int64_t count, size;  // chunk c is [c * size, min(n, (c + 1) * size))
};
Chunks chunks_of(int64_t n, int64_t grain);
inline int64_t chunk_count(int64_t n, int64_t grain) { return chunks_of(n, grain).count; }

namespace detail {
using Run = void (*)(const void* body, int64_t chunk, int64_t begin, int64_t end);
void run_chunks(int64_t n, Chunks chunks, Run run, const void* body);
}  // namespace detail

// body(chunk, begin, end) for every chunk of n, in no order, once each. Returns when all have returned; the first
// exception of a body is thrown here, and chunks not begun by then are skipped. A loop inside a body, and a loop of a
// second thread while the pool is at work for a first, run inline with the same chunks, in order.
template <class Body>
void parallel_chunks(int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  const Chunks chunks = chunks_of(n, grain);
  if (chunks.count == 1) {
    body(int64_t{0}, int64_t{0}, n);
    return;
  }
  detail::run_chunks(
      n, chunks,
      [](const void* b, int64_t chunk, int64_t begin, int64_t end) { (*static_cast<const Body*>(b))(chunk, begin, end); },
      &body);
}

// body(begin, end): the same without the number of the chunk.
template <class Body>
void parallel_for(int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  if (n <= grain) {
    body(int64_t{0}, n);
    return;
  }
  parallel_chunks(n, grain, [&body](int64_t, int64_t begin, int64_t end) { body(begin, end); });
}

}  // namespace pb::cpu
