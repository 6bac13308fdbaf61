// Computes the joint norm of each member's gradients.
#include <algorithm>

#include "cuda/squares.cuh"
#include "families/update.h"

namespace pb::cuda {
namespace {

// The part of a gradient that belongs to one member: elements [begin, end).
struct NormRun {
  Gradient gradient;
  int64_t begin, end;
};
constexpr int kFewNorms = 32, kManyNorms = 512, kWarps = int(kThreads / kWarp);

template <int kMax> struct NormJob {
  Setting* sets;
  ScalerNumber* scaler;    // the numbers of a loss scaler, or null
  double *partial, *sums;  // partial: of the launch's chunks; sums: of all parts, member by member
  unsigned* ticket;
  uint32_t members, entries;  // the number of sets of a member is that of entries
  uint32_t before = 0;        // the number of parts in earlier launches of the job
  bool last = false;          // true for the launch that computes the norms
  int64_t chunk;              // elements: a power of two of blocks for each warp
  Chunks<kMax> chunks;
  NormRun runs[kMax];
};
static_assert(sizeof(NormJob<kManyNorms>) <= kMaxArguments);

// Each block sums the squares of one chunk. The last block to arrive adds up the chunks of each gradient, and in the last launch
// the gradients.
template <int kMax> __global__ void __launch_bounds__(kThreads) norm_kernel(const __grid_constant__ NormJob<kMax> job) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  double sum = no_term<sum_reduce, double>();
  if (blockIdx.x < job.chunks.count()) {
    const int t = job.chunks.find(blockIdx.x);
    const NormRun& run = job.runs[t];
    const int64_t each = job.chunk / kWarps;
    const int64_t begin = run.begin + (blockIdx.x - job.chunks.first[t]) * job.chunk + warp * each;
    sum = sum_of_squares(run.gradient, begin, begin + each < run.end ? begin + each : run.end);
  }
  __shared__ double of_warp[kWarps];
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();
  sum = fold_neighbours<sum_reduce, kWarps>(of_warp[threadIdx.x % kWarps]);
  if (threadIdx.x == 0) job.partial[blockIdx.x] = sum;
  if (!last_to_arrive(job.ticket, gridDim.x)) return;

  const auto add_up = [](const double* results, uint32_t count) {
    return fold_results<sum_reduce, double>(count, [=](int64_t k) { return __ldcg(results + k); });
  };
  for (int t = int(warp); t < job.chunks.entries; t += kWarps) {
    const uint32_t first = job.chunks.first[t];
    sum = add_up(job.partial + first, job.chunks.first[t + 1] - first);
    if (lane == 0) job.sums[job.before + t] = sum;
  }
  __syncthreads();
  if (!job.last) return;
  const uint32_t gradients = (job.before + job.chunks.entries) / job.members;
  for (uint32_t member = warp; member < job.members; member += kWarps) {
    const double norm = gradients > 0 ? m::sqrt(add_up(job.sums + member * gradients, gradients)) : 0;
    const Setting factor = job.scaler ? unscaling(job.scaler[kLossScale], norm) : 1;
    if (job.scaler && lane == 0) count_check(job.scaler, factor);
    for (uint32_t t = lane; t < job.entries; t += kWarp) {
      Setting* const set = job.sets + int64_t(t * job.members + member) * kSetSize;
      if (job.scaler) set[kGradientScale] *= factor;
      clip_to_norm(set, norm);
    }
  }
}

// The gradients that have elements, and the number of elements per block of threads: a power of two of blocks of elements for each
// warp. Of very large gradients it is more, so that the last block of threads has at most about kBlocks sums to add.
struct Extent {
  int64_t members, entries = 0, chunk = 4 * kOrderBlock * kWarps, chunks = 0;

  explicit Extent(const Launch& launch) : members(launch.ints[0]) {
    constexpr int64_t kBlocks = 4096;
    int64_t elements = 0;
    each_gradient(launch, [&](const View& g) { elements += g.size(), ++entries; });
    while (chunk * kBlocks < elements) chunk *= 2;
    each_gradient(launch, [&](const View& g) { chunks += members * chunks_of(g); });
  }
  int64_t chunks_of(const View& g) const { return (g.size() / members + chunk - 1) / chunk; }
  template <class F> static void each_gradient(const Launch& launch, const F& f) {
    for (int t = 0; t < launch.inputs; ++t)
      if (launch.in(t).data && launch.in(t).size() > 0) f(launch.in(t));
  }
};

template <int kMax> void clip_norm(const Launch& launch, const Extent& extent) {
  Scratch scratch;
  Copies copies;
  NormJob<kMax> job;
  job.sets = launch.out().as<Setting>();
  job.scaler = kernels::scaler_of(launch);
  job.partial = scratch.take<double>(std::max<int64_t>(1, extent.chunks));
  job.sums = scratch.take<double>(std::max<int64_t>(1, extent.members * extent.entries));
  job.ticket = tickets();
  job.members = uint32_t(extent.members), job.entries = uint32_t(launch.inputs);
  job.chunk = extent.chunk;
  const auto go = [&] {
    start(norm_kernel<kMax>, dim3(std::max(1u, job.chunks.count())), kThreads, 0, job);
    job.before += uint32_t(job.chunks.entries);
    job.chunks.entries = 0;
  };
  std::vector<Gradient> gradients;
  Extent::each_gradient(launch, [&](const View& g) { gradients.emplace_back(g, copies); });
  for (int64_t member = 0; member < extent.members; ++member) {
    const Gradient* gradient = gradients.data();
    Extent::each_gradient(launch, [&](const View& g) {
      if (job.chunks.entries == kMax) go();
      const kernels::MemberRange range(g, extent.members, member);
      job.runs[job.chunks.add(extent.chunks_of(g))] = {*gradient++, range.begin, range.begin + range.size};
    });
  }
  job.last = true;
  go();
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void clip_norm(const Launch& launch) {
  const cuda::Extent extent(launch);
  if (extent.members * extent.entries > cuda::kFewNorms) cuda::clip_norm<cuda::kManyNorms>(launch, extent);
  else cuda::clip_norm<cuda::kFewNorms>(launch, extent);
}

// Besides the squares: additions in all lanes of a warp for each block of elements and for its neighbours, in all threads for the
// warps of a chunk, and in the last block for the chunks and the gradients. Then all lanes compute the root, and 1e-6 is
// added for each set.
void executed_clip_norm(const Launch& launch, Counts& work) {
  using cuda::kWarp, cuda::kWarps;
  const cuda::Extent extent(launch);
  int64_t squares = 0, adds = std::max<int64_t>(1, extent.chunks) * cuda::kThreads * 3;
  cuda::Extent::each_gradient(launch, [&](const View& g) {
    const int64_t n = g.size() / extent.members, blocks = order_blocks(n);
    const int64_t warps = (n * kWarps + extent.chunk - 1) / extent.chunk;
    squares += extent.members * n;
    adds += extent.members * (blocks * kWarp * (cuda::kShare - 1 + 5) + (blocks - warps) * kWarp);
    adds += extent.members * cuda::combinations_of_results(extent.chunks_of(g));
  });
  work.adds = adds + extent.members * (cuda::combinations_of_results(extent.entries) + launch.inputs),
  work.multiplies = squares + extent.members * launch.inputs;
  if (extent.entries > 0) work.special += extent.members * (kWarp - 1);
}

}  // namespace pb::kernels
