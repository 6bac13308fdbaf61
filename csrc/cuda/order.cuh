// The order of families/order.h on a GPU. The lanes of a warp share a block of terms: lane l has terms l, l + 32, l + 64, ....
#pragma once
#include "cuda/fold.cuh"
#include "families/order.h"
#include "math/functors.h"

namespace pb::cuda {

using kernels::kOrderBlock;

constexpr int kShare = int(kOrderBlock / kWarp);  // terms of a block per lane

// What a lane combines in place of a term that does not exist. It changes nothing: x + -0.0 is x, even if x is -0.0.
template <class R, class A> __device__ inline A no_term() {
  if constexpr (std::is_same_v<R, sum_reduce>) return A(-0.0);
  else return R::template identity<A>();
}

// Combines the terms that a lane has of a block. fold_warp() then combines the lanes.
template <class R, class A> __device__ __forceinline__ A fold_share(A (&a)[kShare]) {
#pragma unroll
  for (int half = kShare / 2; half > 0; half /= 2)
#pragma unroll
    for (int s = 0; s < half; ++s) a[s] = R::combine(a[s], a[s + half]);
  return a[0];
}

// Every lane gets the combination of its group of kLanes neighbouring lanes, in pairs of neighbours. R must be commutative.
template <class R, int kLanes, class A> __device__ inline A fold_neighbours(A a) {
#pragma unroll
  for (int far = 1; far < kLanes; far *= 2) a = R::combine(a, shuffle_xor(a, far));
  return a;
}

// Combines the results of blocks in pairs of neighbours, in the order in which they come. All lanes of a warp add the same results.
template <class R, class A> struct Neighbours {
  A waiting{};  // in lane l: the combination of 2^l neighbours, if it waits for that of the next 2^l
  unsigned count = 0;

  __device__ __forceinline__ void add(A a) {
    int level = 0;
    for (; count >> level & 1; ++level) a = R::combine(shuffle_from(waiting, level), a);
    if (int(threadIdx.x % kWarp) == level) waiting = a;
    ++count;
  }
  __device__ __forceinline__ A combined() const {
    if (count == 0) return no_term<R, A>();
    int level = 0;
    while (!(count >> level & 1)) ++level;
    A a = shuffle_from(waiting, level);
    while (count >> ++level)
      if (count >> level & 1) a = R::combine(shuffle_from(waiting, level), a);
    return a;
  }
};

// Combines result(0), ..., result(count - 1) in pairs of neighbours. All lanes of a warp call it, and get the same combination.
template <class R, class A, class F> __device__ inline A fold_results(int64_t count, const F& result) {
  Neighbours<R, A> all;
  for (int64_t first = 0; first < count; first += kWarp) {
    const int64_t k = first + threadIdx.x % kWarp;
    all.add(fold_neighbours<R, int(kWarp)>(k < count ? A(result(k)) : no_term<R, A>()));
  }
  return all.combined();
}
// Returns the combinations that fold_results() does in all lanes.
inline int64_t combinations_of_results(int64_t count) {
  const int64_t rounds = (count + kWarp - 1) / kWarp;
  return count == 0 ? 0 : int64_t{kWarp} * (5 * rounds + rounds - 1);
}

}  // namespace pb::cuda
