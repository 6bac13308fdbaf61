// Values of the lanes of a warp, the threads of a block and the blocks of a grid folded into one, in an order that never
// changes. R is a row of math/reduce.def, or anything that has combine(a, b), and identity<A>() where it is asked for.
#pragma once
#include "cuda/launch.cuh"

namespace pb::cuda {

// Shuffles of any arithmetic type. The lanes of kFull take part.
template <class A> __device__ inline A shuffle_xor(A a, int mask) { return A(__shfl_xor_sync(kFull, a, mask)); }
template <class A> __device__ inline A shuffle_from(A a, int lane, int width = int(kWarp)) {
  return A(__shfl_sync(kFull, a, lane, width));
}

// Every lane ends with the fold of its group of kLanes neighbours: by halves, the lower lane's value first, so that all have the
// same bits whatever R is. Called by all lanes of the warp.
template <class R, int kLanes = int(kWarp), class A> __device__ inline A fold_warp(A a) {
  static_assert(kLanes >= 1 && kLanes <= int(kWarp) && (kLanes & (kLanes - 1)) == 0);
#pragma unroll
  for (int half = kLanes / 2; half > 0; half /= 2) {
    const A other = shuffle_xor(a, half);
    a = threadIdx.x & unsigned(half) ? R::combine(other, a) : R::combine(a, other);
  }
  return a;
}

// Every thread of a one-dimensional block of kOf threads ends with the fold of all. Called by all of them; again at once if need
// be: the barrier before the write waits for the readers of the call before.
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

// Whether this block is the last of `expected` that arrive at the ticket; the same for all its threads, all of which call this.
// What any of them wrote before is then seen by the last, which reads it in the order of an index. Reads go past the first-level
// cache (__ldcg): it may hold lines from before.
__device__ inline bool last_to_arrive(unsigned* ticket, unsigned expected) {
  __shared__ int last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(ticket, 1u) + 1 == expected;
    if (last) *ticket = 0;
  }
  __syncthreads();
  const bool answer = last;
  __threadfence();
  return answer;
}

}  // namespace pb::cuda
