// Reduces values over the lanes of a warp, the threads of a block and the blocks of a grid, in an order that never changes. R is a
// row of math/reduce.def, or any type that has combine(a, b), and identity<A>() if that is needed.
#pragma once
#include "cuda/launch.cuh"

namespace pb::cuda {

// Shuffles of any arithmetic type. All lanes of the warp take part.
template <class A> __device__ inline A shuffle_xor(A a, int mask) { return A(__shfl_xor_sync(kFull, a, mask)); }
template <class A> __device__ inline A shuffle_from(A a, int lane, int width = int(kWarp)) {
  return A(__shfl_sync(kFull, a, lane, width));
}

// Every lane gets the reduction of its group of kLanes neighbouring lanes. The group is combined by halves with the lower lane's
// value first, so that all lanes get the same bits even if R is not commutative. All lanes of the warp must call it.
template <class R, int kLanes = int(kWarp), class A> __device__ inline A fold_warp(A a) {
  static_assert(kLanes >= 1 && kLanes <= int(kWarp) && (kLanes & (kLanes - 1)) == 0);
#pragma unroll
  for (int half = kLanes / 2; half > 0; half /= 2) {
    const A other = shuffle_xor(a, half);
    a = threadIdx.x & unsigned(half) ? R::combine(other, a) : R::combine(a, other);
  }
  return a;
}

// Every thread of a one-dimensional block of kOf threads gets the reduction of all their values. All threads must call it. It may
// be called again at once: the barrier before the write waits until all threads have read the partial values of the previous call.
template <class R, int kOf = int(kThreads), class A> __device__ inline A fold_block(A a) {
  constexpr int kWarps = kOf / int(kWarp);
  static_assert(kOf % int(kWarp) == 0 && kWarps >= 1 && kWarps <= int(kWarp) && (kWarps & (kWarps - 1)) == 0);
  a = fold_warp<R>(a);
  if constexpr (kWarps > 1) {
    __shared__ A partial[kWarps];
    __syncthreads();
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = a;
    __syncthreads();
    a = fold_warp<R, kWarps>(partial[threadIdx.x % kWarps]);
  }
  return a;
}

// Adds 1 to a ticket, and returns true to the last of the `expected` threads that do. All that the threads before it knew to be
// written is visible to this thread.
//
// Every thread releases what it has written, and the last one acquires it. To acquire empties the L1 cache, in which the other
// blocks of the multiprocessor have their data. So only the last thread does that, by a fence, which makes an acquire pattern of
// the read of the ticket before it (PTX ISA, memory consistency model). Before sm_90 a fence would also wait for writes once more,
// so there every thread acquires.
__device__ inline bool take_ticket(unsigned* ticket, unsigned expected) {
#if !defined(__CUDA_ARCH__)
  __threadfence();
  const bool last = atomicAdd(ticket, 1u) + 1 == expected;
  if (last) __threadfence();
  return last;
#elif __CUDA_ARCH__ >= 900
  unsigned before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
  const bool last = before + 1 == expected;
  if (last) asm volatile("fence.acquire.gpu;" ::: "memory");
  return last;
#else
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
  return before + 1 == expected;
#endif
}

// Returns true in the last of the `expected` blocks that arrive at the ticket. All threads of the block must call it, and all get
// the same result. Everything that the other blocks wrote before they arrived is visible to the last block, which can therefore
// combine their results in a fixed order. It must read them past the L1 cache (__ldcg), which may hold stale lines.
//
// One thread speaks for its block: what the others wrote before the first barrier is ordered before the ticket, and what they read
// after the second barrier is ordered after it.
__device__ inline bool last_to_arrive(unsigned* ticket, unsigned expected) {
  __shared__ int last;
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = take_ticket(ticket, expected);
    if (last) *ticket = 0;
  }
  __syncthreads();
  return last;
}

}  // namespace pb::cuda
