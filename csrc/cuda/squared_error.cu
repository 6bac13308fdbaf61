// The squared error of two arrays, and its gradient, in one launch. The last block to arrive combines the sums of all blocks.
#include "families/squared_error.h"

#include "cuda/copy.cuh"
#include "cuda/operand.cuh"
#include "cuda/order.cuh"
#include "families/executed.h"

namespace pb::cuda {
namespace {

constexpr int kWarps = int(kThreads / kWarp);
constexpr int64_t kRound = kWarps * kOrderBlock;  // elements that a block of threads takes at once
constexpr int kPartials = 4;                      // sums of blocks that a thread combines
constexpr int64_t kMostBlocks = kPartials * int64_t{kThreads};

struct Errors {
  const void *g, *x, *target;
  void *loss, *gx, *partial;
  int64_t n, depth;  // each warp takes `depth` neighbouring blocks of elements, a power of two
  double share;
  bool divides;
  unsigned* ticket;
};

// All threads get the combination of what the warps have, in pairs of neighbours.
template <class C> __device__ inline C combine_warps(C a) {
  __shared__ C of_warp[kWarps];
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = a;
  __syncthreads();
  return fold_neighbours<sum_reduce, kWarps>(of_warp[threadIdx.x % kWarps]);
}

template <class T, bool kLoss, bool kGradient>
__global__ void __launch_bounds__(kThreads) squared_errors(const __grid_constant__ Errors f) {
  using C = acc_t<T>;
  const T *x = static_cast<const T*>(f.x), *target = static_cast<const T*>(f.target);
  T* gx = static_cast<T*>(f.gx);
  C twice = C(0);
  if constexpr (kGradient) twice = C(2) * (C(*static_cast<const T*>(f.g)) * C(f.share));
  const int lane = int(threadIdx.x % kWarp);
  const int64_t first = (int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarp) * f.depth;
  Neighbours<sum_reduce, C> sums;
  for (int64_t block = first; block < first + f.depth && block * kOrderBlock < f.n; ++block) {
    C a[kShare], b[kShare];
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      const int64_t i = block * kOrderBlock + s * int(kWarp) + lane;
      if (i < f.n) a[s] = C(x[i]), b[s] = C(target[i]);
    }
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      const int64_t i = block * kOrderBlock + s * int(kWarp) + lane;
      if (i < f.n) {
        const C d = a[s] - b[s];
        if constexpr (kGradient) gx[i] = T(twice * d);
        if constexpr (kLoss) a[s] = d * d;
      } else {
        a[s] = no_term<sum_reduce, C>();
      }
    }
    if constexpr (kLoss) sums.add(fold_warp<sum_reduce>(fold_share<sum_reduce>(a)));
  }
  if constexpr (kLoss) {
    C sum = combine_warps(sums.combined());
    if (gridDim.x > 1) {
      C* const partial = static_cast<C*>(f.partial);
      if (threadIdx.x == 0) partial[blockIdx.x] = sum;
      if (!last_to_arrive(f.ticket, gridDim.x)) return;
      C a[kPartials];
#pragma unroll
      for (int k = 0; k < kPartials; ++k) {
        const unsigned i = threadIdx.x * kPartials + unsigned(k);
        a[k] = i < gridDim.x ? read_fresh(partial + i) : no_term<sum_reduce, C>();
      }
      sum = sum_reduce::combine(sum_reduce::combine(a[0], a[1]), sum_reduce::combine(a[2], a[3]));
      sum = combine_warps(fold_neighbours<sum_reduce, int(kWarp)>(sum));
    }
    if (threadIdx.x != 0) return;
    if (f.n == 0) sum = C(0);
    *static_cast<T*>(f.loss) = T(f.divides ? sum / C(double(f.n)) : sum);
  }
}

struct Division {
  int64_t depth = 1;
  unsigned blocks;
  Division(int64_t n, bool loss) {
    while (n > kMostBlocks * kRound * depth) depth *= 2;
    blocks = unsigned((n + kRound * depth - 1) / (kRound * depth));
    if (loss && blocks == 0) blocks = 1;
  }
};

template <bool kLoss, bool kGradient> void run(const Launch& launch) {
  const View &x = launch.in(kGradient), &target = launch.in(kGradient + 1);
  const int64_t n = x.size();
  const Division division(n, kLoss);
  Scratch scratch;
  Errors f{};
  f.x = contiguous_as(x.dtype, x, scratch).data, f.target = contiguous_as(x.dtype, target, scratch).data;
  if constexpr (kGradient) f.g = launch.in(0).data, f.gx = launch.out(kLoss).data, f.share = kernels::share_of(launch, n);
  if constexpr (kLoss) f.loss = launch.out().data;
  f.n = n, f.depth = division.depth, f.divides = kernels::is_divided(launch, n);
  if (kLoss && division.blocks > 1) f.partial = scratch.take<double>(division.blocks), f.ticket = tickets();
  visit(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<T>)
      start(squared_errors<T, kLoss, kGradient>, dim3(division.blocks), dim3(kThreads), 0, f);
  });
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

void run_squared_error(const Launch& launch) { run<true, false>(launch); }
void run_squared_error_pullback(const Launch& launch) { run<false, true>(launch); }
void run_squared_error_with_gradient(const Launch& launch) { run<true, true>(launch); }

// All lanes combine the terms of a block, the results of their warp's blocks, those of the warps, and those of all blocks of
// threads. Every thread multiplies g.
void executed_squared_error(const Launch& launch, bool loss, bool gradient, Counts& work) {
  const int64_t n = launch.in(gradient).size(), blocks = order_blocks(n);
  const Division division(n, loss);
  const int64_t threads = int64_t{division.blocks} * kThreads, warps = (blocks + division.depth - 1) / division.depth;
  if (loss) {
    work.adds = n + kWarp * (blocks * (kShare - 1 + 5) + blocks - warps) + threads * 3;
    if (division.blocks > 1) work.adds += kThreads * (kPartials - 1 + 5 + 3);
  }
  if (gradient) work.multiplies = n * (1 + loss) + 2 * threads;
}

}  // namespace pb::kernels
