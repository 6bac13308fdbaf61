// The threads of the CPU backend: one small pool, whose workers sleep when there is nothing to do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace pb::cpu {

// Returns the number of threads that share a loop, including the caller. The default is PULLBACK_NUM_THREADS, or the number of CPUs
// that this process may use.
int thread_count();
void set_thread_count(int count);  // at least 1; takes effect from the next loop on

// Returns the number of CPUs in the affinity mask of this process, or the least quota of its control groups if that is less.
// root: as for cgroup_folders().
int usable_cpus(const std::string& root);

// The chunks into which a loop over n is cut. They depend on n, grain and thread_count() alone, so that a reduction over chunks
// gives the same bits whichever threads run them, and even if the loop runs inline. Only the last chunk may be shorter than grain.
struct Chunks {
  int64_t count, size;  // chunk c is [c * size, min(n, (c + 1) * size))
};
Chunks chunks_of(int64_t n, int64_t grain);
inline int64_t chunk_count(int64_t n, int64_t grain) { return chunks_of(n, grain).count; }

namespace detail {
using ChunkBody = void (*)(const void* body, int64_t chunk, int64_t begin, int64_t end);
void run_chunks(int64_t n, Chunks chunks, ChunkBody run, const void* body);
}  // namespace detail

// Calls body(chunk, begin, end) once for every chunk of n, in any order, and returns when all calls have returned. The first
// exception that a body throws is rethrown here, and chunks that have not begun by then are skipped. A loop inside a body, and a
// loop of another thread while the pool is busy, run inline with the same chunks, in order.
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

// Like parallel_chunks(), but calls body(begin, end), without the chunk number.
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
