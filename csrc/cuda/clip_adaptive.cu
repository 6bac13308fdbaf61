// Adaptive clipping: the gradient of each unit is scaled to at most a share of the norm of the unit's weights.
#include "cuda/squares.cuh"
#include "families/update.h"

namespace pb::cuda {
namespace {

// The units of one tensor. A short unit has one warp, and a long one all warps of a block, which take runs of `each` elements.
struct UnitRun {
  Gradient gradient, weights;
  char* out;
  int64_t length, each;  // each: a power of two of blocks of elements
  uint32_t units;
  bool is_long;
};
constexpr int kFewRuns = 24, kManyRuns = 192, kWarps = int(kThreads / kWarp);
constexpr int64_t kShort = 8 * kOrderBlock;  // elements of the longest unit that has one warp

template <int kMax> struct UnitJob {
  const Setting *set, *share;
  Chunks<kMax> chunks;
  UnitRun runs[kMax];
};
static_assert(sizeof(UnitJob<kManyRuns>) <= kMaxArguments);

template <class A> __device__ void scale(const UnitRun& run, int64_t begin, int64_t end, int step, double factor) {
  const DType dtype = run.gradient.dtype;
  for (int64_t i = begin; i < end; i += step)
    store_as<A>(dtype, run.out + i * size_of<A>(dtype), run.gradient.at<A>(i) * A(factor));
}

// Both sums of a unit are read from memory, and the gradient then once more from the L2 cache: 12 bytes per float weight move.
template <int kMax> __global__ void __launch_bounds__(kThreads, 4) unit_kernel(const __grid_constant__ UnitJob<kMax> job) {
  const int t = job.chunks.find(blockIdx.x);
  const UnitRun& run = job.runs[t];
  const uint32_t chunk = blockIdx.x - job.chunks.first[t];
  const int64_t warp = threadIdx.x / kWarp, unit = run.is_long ? chunk : chunk * kWarps + warp;
  if (unit >= run.units) return;  // without barriers ahead: long units have a block each
  const int64_t begin = unit * run.length, end = begin + run.length;
  const int64_t first = run.is_long ? begin + warp * run.each : begin, last = run.is_long ? first + run.each : end;
  double weights = 0, gradient = 0;
#pragma unroll 1
  for (int k = 0; k < 2; ++k) {  // one copy of the code for both
    weights = gradient;
    gradient = sum_of_squares(k == 0 ? run.weights : run.gradient, first, last < end ? last : end);
  }
  if (run.is_long) {
    __shared__ double of_warp[2][kWarps];
    if (threadIdx.x % kWarp == 0) of_warp[0][warp] = weights, of_warp[1][warp] = gradient;
    __syncthreads();
    weights = fold_neighbours<sum_reduce, kWarps>(of_warp[0][threadIdx.x % kWarps]);
    gradient = fold_neighbours<sum_reduce, kWarps>(of_warp[1][threadIdx.x % kWarps]);
  }
  const double factor = unit_factor<double>(weights, gradient, double(job.set[kGradientScale]), double(*job.share));
  const int64_t mine = begin + (run.is_long ? threadIdx.x : threadIdx.x % kWarp);
  const int step = run.is_long ? int(kThreads) : int(kWarp);
  if (run.gradient.dtype != DType::f64) scale<float>(run, mine, end, step, factor);
  else scale<double>(run, mine, end, step, factor);
}

template <int kMax> void clip_adaptive(const Launch& launch) {
  const int entries = int(launch.ints[0]);
  Copies copies;
  UnitJob<kMax> job;
  job.set = launch.in(2 * entries).as<Setting>(), job.share = launch.in(2 * entries + 1).as<Setting>();
  const auto go = [&] {
    start(unit_kernel<kMax>, dim3(job.chunks.count()), kThreads, 0, job);
    job.chunks.entries = 0;
  };
  for (int t = 0; t < entries; ++t) {
    const View &g = launch.in(t), &p = launch.in(entries + t);
    if (!g.data) continue;
    if (job.chunks.entries == kMax) go();
    const int64_t units = p.shape[0], length = p.shape[1];
    const bool is_long = length > kShort;
    UnitRun& run = job.runs[job.chunks.add(is_long ? units : (units + kWarps - 1) / kWarps)];
    run.gradient = Gradient(g, copies);
    run.weights = Gradient(flat_view(p.data, p.dtype, p.size()), copies);
    run.out = launch.out(t).data;
    run.length = length, run.each = terms_of_warp(length, kWarps);
    run.units = uint32_t(units), run.is_long = is_long;
  }
  if (job.chunks.entries > 0) go();
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void clip_adaptive(const Launch& launch) {
  if (launch.ints[0] > cuda::kFewRuns) cuda::clip_adaptive<cuda::kManyRuns>(launch);
  else cuda::clip_adaptive<cuda::kFewRuns>(launch);
}

// All lanes that share a unit compute its factor. Additions: in all lanes of a warp for each block of elements and for its neighbours,
// and in all threads for the warps of a long unit.
void executed_clip_adaptive(const Launch& launch, Counts& work) {
  using cuda::kWarp, cuda::kWarps, cuda::kThreads;
  const int entries = int(launch.ints[0]);
  work = {};
  for (int t = 0; t < entries; ++t) {
    const View& p = launch.in(entries + t);
    if (!launch.in(t).data) continue;
    const int64_t units = p.shape[0], length = p.shape[1], blocks = order_blocks(length);
    const bool is_long = length > cuda::kShort;
    const int64_t each = cuda::terms_of_warp(length, kWarps), warps = is_long ? (length + each - 1) / each : 1;
    const int64_t threads = is_long ? kThreads : kWarp;
    const int64_t adds = blocks * kWarp * (cuda::kShare - 1 + 5) + (blocks - warps) * kWarp + (is_long ? threads * 3 : 0);
    work.adds += 2 * units * adds;
    work.multiplies += 3 * p.size() + 2 * units * threads;
    work.special += 3 * units * threads;
  }
}

}  // namespace pb::kernels
