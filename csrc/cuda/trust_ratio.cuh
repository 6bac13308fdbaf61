// The launch before the update of a rule with a trust ratio: the norms of the weights and of the direction of each range.
#pragma once
#include "cuda/gradients.cuh"
#include "cuda/order.cuh"
#include "families/update.h"

namespace pb::cuda {

// The part of a tensor that belongs to one member: elements [begin, end).
struct RatioRun {
  const char *weights, *low, *slots[kernels::kMaxSlots];
  Gradient gradient;
  int64_t begin, end;
  uint32_t set;
  DType dtype;  // of the weights
};
constexpr int kRatioRuns = 256, kRatioWarps = int(kThreads / kWarp);
constexpr int64_t kRatioChunk = 2 * kOrderBlock * kRatioWarps;  // elements of a block of threads

struct RatioJob {
  Setting* sets;
  const Setting* program;
  double2* partial;  // the sums of squares of each chunk: of the weights and of the direction
  unsigned* ticket;
  Chunks<kRatioRuns> chunks;
  RatioRun runs[kRatioRuns];
};
static_assert(sizeof(RatioJob) <= kMaxArguments);

// Replaces a master whose half precision weight has been assigned since the last step.
__device__ inline void refresh(DType dtype, const char* low, int64_t i, float& p) {
  p = dtype == DType::f16 ? master_of(p, reinterpret_cast<const float16*>(low)[i])
                          : master_of(p, reinterpret_cast<const bfloat16*>(low)[i]);
}
__device__ inline void refresh(DType, const char*, int64_t, double&) {}

// A lane's share of a block of squares, and their combination in all lanes.
__device__ inline double block_sum(double (&squares)[kShare]) { return fold_warp<sum_reduce>(fold_share<sum_reduce>(squares)); }

// Each block sums the squares of one chunk. The last block to end adds up the chunks of each part, and writes the ratios. Bound by
// memory: LAMB reads 16 bytes per float weight.
template <class U, class A> __global__ void __launch_bounds__(kThreads) ratio_kernel(const __grid_constant__ RatioJob job) {
  using Element = typename U::template Element<A>;
  constexpr DType kSlotType = std::is_same_v<A, float> ? DType::f32 : DType::f64;
  struct alignas(16) Bytes {
    unsigned char of[sizeof(Element)];
  };
  __shared__ Setting set[kSetSize];
  __shared__ Bytes bytes;  // of the Element, which has a constructor
  __shared__ double2 of_warp[kRatioWarps];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  {
    const int t = job.chunks.find(blockIdx.x);
    const RatioRun& run = job.runs[t];
    if (threadIdx.x < kSetSize) set[threadIdx.x] = job.sets[int64_t{run.set} * kSetSize + threadIdx.x];
    __syncthreads();
    if (set[kGradientScale] == 0) return;  // all blocks: the update changes nothing
    if (threadIdx.x == 0) {
      begin<U>(set, job.program);
      U::measuring(set);
      new (&bytes) Element(set);
    }
    __syncthreads();
    const Element& f = *reinterpret_cast<const Element*>(&bytes);
    Neighbours<sum_reduce, double> weights, direction;
    const int64_t first = run.begin + (blockIdx.x - job.chunks.first[t]) * kRatioChunk + warp * (kRatioChunk / kRatioWarps);
    const int64_t last = first + kRatioChunk / kRatioWarps, end = last < run.end ? last : run.end;
    for (int64_t block = first; block < end; block += kOrderBlock) {
      double p2[kShare], u2[kShare];
#pragma unroll
      for (int s = 0; s < kShare; ++s) {
        const int64_t i = block + s * int(kWarp) + lane;
        p2[s] = u2[s] = no_term<sum_reduce, double>();
        if (i < end) {
          A p = load_as<A>(run.dtype, run.weights + i * size_of<A>(run.dtype));
          if (run.low) refresh(run.gradient.dtype, run.low, i, p);
          A column[U::kSlots + 1];
#pragma unroll
          for (int k = 0; k < U::kSlots; ++k) column[k] = load_as<A>(kSlotType, run.slots[k] + i * int64_t(sizeof(A)));
          const double x = double(normal_or_zero(p));
          const double u = double(normal_or_zero(kernels::change_of<U>(f, p, run.gradient.at<A>(i), column)));
          p2[s] = x * x, u2[s] = u * u;
        }
      }
      weights.add(block_sum(p2));
      direction.add(block_sum(u2));
    }
    const double2 sums{weights.combined(), direction.combined()};
    if (lane == 0) of_warp[warp] = sums;
  }
  __syncthreads();
  const double2 mine = of_warp[threadIdx.x % kRatioWarps];
  const double2 sums{fold_neighbours<sum_reduce, kRatioWarps>(mine.x), fold_neighbours<sum_reduce, kRatioWarps>(mine.y)};
  if (threadIdx.x == 0) job.partial[blockIdx.x] = sums;
  if (!last_to_arrive(job.ticket, gridDim.x)) return;
  for (int t = int(warp); t < job.chunks.entries; t += kRatioWarps) {
    const uint32_t first = job.chunks.first[t], count = job.chunks.first[t + 1] - first;
    const double w = fold_results<sum_reduce, double>(count, [=](int64_t k) { return __ldcg(&job.partial[first + k].x); });
    const double u = fold_results<sum_reduce, double>(count, [=](int64_t k) { return __ldcg(&job.partial[first + k].y); });
    if (lane == 0) write_ratio(job.sets + int64_t{job.runs[t].set} * kSetSize, w, u);
  }
}

// Measures the tensors whose compute type is A, up to kRatioRuns parts in each kernel launch.
template <class U, class A> void measure_tensors(const Launch& launch, Copies& copies) {
  if constexpr (kMeasured<U>) {
    Scratch scratch;
    RatioJob job;
    job.sets = kernels::sets_of(launch);
    job.program = kernels::program_of(launch);
    job.ticket = tickets();
    const auto go = [&] {
      job.partial = scratch.take<double2>(job.chunks.count());
      start(ratio_kernel<U, A>, dim3(job.chunks.count()), kThreads, 0, job);
      job.chunks.entries = 0;
    };
    for (int64_t t = 0; t < launch.ints[0]; ++t) {
      const kernels::Entry entry(launch, t);
      const View& g = entry.gradient();
      if (!g.data || compute_type(g.dtype) != compute_of<A>) continue;
      const Gradient gradient(g, copies);
      for (int64_t member = 0; member < launch.ints[1]; ++member) {
        if (job.chunks.entries == kRatioRuns) go();
        const kernels::MemberRange range(g, launch.ints[1], member);
        RatioRun& run = job.runs[job.chunks.add((range.size + kRatioChunk - 1) / kRatioChunk)];
        run.weights = entry.weights().data, run.low = entry.low().data, run.dtype = entry.weights().dtype;
        for (int k = 0; k < entry.slots; ++k) run.slots[k] = entry.slot(k).data;
        run.gradient = gradient;
        run.begin = range.begin, run.end = range.begin + range.size;
        run.set = uint32_t(t * launch.ints[1] + member);
      }
    }
    if (job.chunks.entries > 0) go();
  }
}

}  // namespace pb::cuda
