// Barriers and fences of device code.
#pragma once

#include <atomic>

#include "cudasim/block.h"
#include "cudasim/grid.h"

inline void __syncthreads(cudasim::Site site = cudasim::Site::here()) { cudasim::Block::running().barrier(false, site); }
inline int __syncthreads_or(int predicate, cudasim::Site site = cudasim::Site::here()) {
  return cudasim::Block::running().barrier(predicate != 0, site).nonzero != 0;
}
inline int __syncthreads_and(int predicate, cudasim::Site site = cudasim::Site::here()) {
  const cudasim::Votes votes = cudasim::Block::running().barrier(predicate != 0, site);
  return votes.nonzero == votes.threads;
}

// All threads see a write at once here. A fence orders the OS threads, and is a point at which another thread may run.
inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  cudasim::Block::running().maybe_yield();
}
inline void __threadfence_system() { __threadfence(); }

// A loop that waits for another thread or block must sleep or use an atomic, because nothing else lets that thread run.
inline void __nanosleep(unsigned) { cudasim::give_way(); }
[[noreturn]] inline void __trap() { cudasim::fail("trap"); }

// Programmatic dependent launch. These do nothing, because every launch here begins after the launch before it has ended.
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
