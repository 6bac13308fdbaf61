// The order of families/order.h on a GPU. Every reduction follows these drawings; the kernels differ in who the threads are.
//
// The terms of a block (256) belong to T threads: thread t has terms t, t + T, t + 2 T, .... Here are 16 terms and 4 threads.
//
//              thread 0        thread 1        thread 2        thread 3
//   terms      0  4  8  12     1  5  9  13     2  6  10  14    3  7  11  15
//   8 apart    0+8   4+12      1+9   5+13      2+10  6+14      3+11  7+15      in a thread
//   4 apart    (0+8)+(4+12)    b               c               d               in a thread; the sum in thread 0 is called a
//   2 apart    a+c             b+d                                             between threads, by shuffles or shared memory
//   1 apart    (a+c)+(b+d)                                                     between threads
//
// The results of the blocks are combined in pairs of neighbours, as far as there are pairs:
//
//   blocks     0       1       2       3       4
//              0+1             2+3             4
//              (0+1)+(2+3)                     4
//              ((0+1)+(2+3))+4
//
//                T threads                          in a thread     between threads   blocks
//   rows.cuh     some lanes of a warp, or all       fold_share      fold_lanes        Neighbours, then warps: fold_neighbours
//   reduce.cuh   up to 16, of a team of a block     combine_rows    combine_down      Pending, then teams: combine_neighbours
//
// A term that does not exist is no_term() in rows.cuh; reduce.cuh leaves it out. Both give the same bits.
#pragma once
#include "cuda/fold.cuh"
#include "cuda/shares.h"
#include "math/reductions.h"

namespace pb::cuda {

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
#pragma unroll 1
    for (; count >> level & 1; ++level) a = R::combine(shuffle_from(waiting, level), a);
    if (int(threadIdx.x % kWarp) == level) waiting = a;
    ++count;
  }
  __device__ __forceinline__ A combined() const {
    if (count == 0) return no_term<R, A>();
    int level = __ffs(int(count)) - 1;
    A a = shuffle_from(waiting, level);
#pragma unroll 1
    while (count >> ++level)
      if (count >> level & 1) a = R::combine(shuffle_from(waiting, level), a);
    return a;
  }
};

// Returns the sum of term(begin), ..., term(end - 1). All lanes of a warp call it. begin: a multiple of 2^p blocks, if another warp has
// the terms before it.
template <class F> __device__ inline double sum_in_order(int64_t begin, int64_t end, const F& term) {
  Neighbours<sum_reduce, double> sums;
  for (int64_t block = begin; block < end; block += kOrderBlock) {
    double a[kShare];
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      const int64_t i = block + s * int(kWarp) + threadIdx.x % kWarp;
      a[s] = i < end ? term(i) : no_term<sum_reduce, double>();
    }
    sums.add(fold_warp<sum_reduce>(fold_share<sum_reduce>(a)));
  }
  return sums.combined();
}
// Returns how many of n terms each warp of a block adds up: the fewest, a power of two of blocks, for which `warps` warps suffice.
inline int64_t terms_of_warp(int64_t n, int64_t warps) {
  int64_t terms = kOrderBlock;
  while (terms * warps < n) terms *= 2;
  return terms;
}

// Combines result(0), ..., result(count - 1) in pairs of neighbours. All lanes of a warp call it, and get the same combination.
template <class R, class A, class F> __device__ inline A fold_results(int64_t count, const F& result) {
  Neighbours<R, A> all;
#pragma unroll 1
  for (int64_t first = 0; first < count; first += kWarp) {
    const int64_t k = first + threadIdx.x % kWarp;
    all.add(fold_neighbours<R, int(kWarp)>(k < count ? A(result(k)) : no_term<R, A>()));
  }
  return all.combined();
}

}  // namespace pb::cuda
