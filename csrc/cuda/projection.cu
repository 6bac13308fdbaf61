// Projects vectors of weights: one launch for all tensors of one compute type.
#include "families/projection.h"

#include "cuda/gradients.cuh"
#include "cuda/order.cuh"

namespace pb::cuda {
namespace {

using kernels::ProjectedEntry;

// The vectors of one tensor. A short vector has one warp, and a long one all warps of a block, which take runs of `each` elements.
// Neighbouring warps have neighbouring vectors, so that the warps of a block share the sectors of strided vectors in the L1 cache.
struct VectorRun {
  char *weights, *low, *delta, *average;
  const char *before, *old_average, *mask;
  const Setting* sets;
  Setting most, shortened;
  int64_t length, each, member_size;
  Divider inner;  // the distance of the elements of a vector
  uint32_t vectors;
  DType dtype, low_dtype;
  bool is_long;
};
constexpr int kVectorRuns = 32, kVectorWarps = int(kThreads / kWarp);
constexpr int64_t kShortVector = 8 * kOrderBlock;  // elements of the longest vector that has one warp

struct VectorJob {
  Limit limit;
  Chunks<kVectorRuns> chunks;
  VectorRun runs[kVectorRuns];
};
static_assert(sizeof(VectorJob) <= kMaxArguments);

// The threads that share one vector.
struct VectorTeam {
  const VectorRun& run;
  int64_t first, step;  // the position of the vector's first element, and the distance of its elements
  __device__ int64_t at(int64_t k) const { return first + k * step; }
  __device__ int lane() const { return int(run.is_long ? threadIdx.x : threadIdx.x % kWarp); }
  __device__ int size() const { return int(run.is_long ? kThreads : kWarp); }
  __device__ bool keeps(int64_t k) const { return !run.mask || run.mask[at(k)] != 0; }
  template <class A> __device__ A weight(int64_t k) const {
    return load_as<A>(run.dtype, run.weights + at(k) * size_of<A>(run.dtype));
  }

  // Every thread gets the combination of all threads' values. Its order is free, as that of an extreme or of an integer sum is.
  template <class R, class T> __device__ T fold(T value) const {
    return run.is_long ? fold_block<R>(value) : fold_warp<R>(value);
  }
  // Every thread gets the sum of term(0), ..., term(length - 1), in the order of families/order.h.
  template <class F> __device__ double sum(const F& term) const {
    const int64_t warp = run.is_long ? threadIdx.x / kWarp : 0;
    const int64_t from = warp * run.each, last = run.is_long ? from + run.each : run.length,
                  to = last < run.length ? last : run.length;
    const double mine = sum_in_order(from, to, term);
    if (!run.is_long) return mine;
    __shared__ double of_warp[kVectorWarps];
    __syncthreads();
    if (threadIdx.x % kWarp == 0) of_warp[warp] = mine;
    __syncthreads();
    return fold_neighbours<sum_reduce, kVectorWarps>(of_warp[threadIdx.x % kVectorWarps]);
  }

  // Writes element k, whose projection is y.
  template <class A> __device__ void finish(int64_t k, A y, A x, const Finish<A>& finish) const {
    constexpr DType kWide = std::is_same_v<A, float> ? DType::f32 : DType::f64;
    const int64_t i = at(k), place = i * size_of<A>(run.dtype), wide = i * int64_t(sizeof(A));
    if constexpr (std::is_same_v<A, float>)
      if (run.dtype != DType::f32) y = run.dtype == DType::f16 ? float(float16(y)) : float(bfloat16(y));
    const bool kept = keeps(k);
    y = kept ? y : A(0);
    if (run.delta) {  // The delta of an element that is not changed stays exact.
      const A delta = load_as<A>(run.dtype, run.delta + place), moved = y - load_as<A>(run.dtype, run.before + place);
      store_as<A>(run.dtype, run.delta + place, y == x ? delta : moved);
    }
    if (run.average) {
      const A average = finish.averaged(load_as<A>(kWide, run.old_average + wide), y);
      store_as<A>(kWide, run.average + wide, kept ? average : A(0));
    }
    store_as<A>(run.dtype, run.weights + place, y);
    if constexpr (std::is_same_v<A, float>)
      if (run.low) store_as<A>(run.low_dtype, run.low + i * 2, y);
  }
};

// A vector is read from memory once, and then from the caches: a float weight takes 8 bytes of memory traffic without a delta and an
// average. A vector of a norm is read three times, a distribution once more in each round.
template <class A, bool is_norm>
__global__ void __launch_bounds__(kThreads, 4) project_kernel(const __grid_constant__ VectorJob job) {
  const int t = job.chunks.find(blockIdx.x);
  const VectorRun& run = job.runs[t];
  const uint32_t chunk = blockIdx.x - job.chunks.first[t];
  const uint32_t vector = run.is_long ? chunk : chunk * kVectorWarps + threadIdx.x / kWarp;
  if (vector >= run.vectors) return;  // without barriers ahead: long vectors have a block each
  const int64_t step = run.inner.divisor, outer = run.inner.divide(vector);
  const VectorTeam team{run, outer * run.length * step + (vector - outer * step), step};
  const Setting* const set = run.sets + team.first / run.member_size * kSetSize;
  const Finish<A> finish(0, 0, run.average ? set[kStep] : 0, run.average ? set[kKeep] : 0);
  if constexpr (is_norm) {
    A top = 0;
    for (int64_t k = team.lane(); k < run.length; k += team.size()) {
      const A size = m::abs(team.weight<A>(k));
      top = size > top ? size : top;
    }
    const A scale = scale_to_one(team.fold<max_reduce>(top));
    const double squares = team.sum([&](int64_t k) {
      const double z = double(normal_or_zero(A(team.weight<A>(k) * scale)));
      return z * z;
    });
    const Rescaling<A> rescaled(job.limit, scale, squares, run.most, run.shortened);
    for (int64_t k = team.lane(); k < run.length; k += team.size()) {
      const A x = team.weight<A>(k);
      team.finish(k, rescaled(x), x, finish);
    }
  } else {
    constexpr A kNone = -m::kInfinity<A>;
    A top = kNone;
    for (int64_t k = team.lane(); k < run.length; k += team.size()) {
      const A x = team.weight<A>(k);
      top = team.keeps(k) && x > top ? x : top;
    }
    top = team.fold<max_reduce>(top);
    const auto relative = [&](int64_t k) { return element_of_distribution(team.weight<A>(k), team.keeps(k)) - top; };
    Threshold threshold;
    const auto above = [&] {
      int64_t count = 0;
      for (int64_t k = team.lane(); k < run.length; k += team.size()) count += threshold.is_below(relative(k));
      return team.fold<sum_reduce>(count);
    };
    while (threshold.improves(above()))
      threshold.improve(team.sum([&](int64_t k) {
        const A y = relative(k);
        return threshold.is_below(y) ? double(y) : double(-0.0);
      }));
    for (int64_t k = team.lane(); k < run.length; k += team.size())
      team.finish(k, threshold.positive_part(relative(k)), team.weight<A>(k), finish);
  }
}

// Projects the tensors whose compute type is A.
template <class A, bool is_norm> void project_tensors(const Launch& launch) {
  VectorJob job;
  job.limit = Limit(launch.ints[1]);
  const auto go = [&] {
    start(project_kernel<A, is_norm>, dim3(job.chunks.count()), kThreads, 0, job);
    job.chunks.entries = 0;
  };
  for (int64_t t = 0; t < launch.ints[0]; ++t) {
    const ProjectedEntry entry(launch, t);
    if (compute_type(entry.weights().dtype) != compute_of<A>) continue;
    if (entry.vectors() > kMaxWalk) throw Failure("more vectors than a projection can have");
    if (job.chunks.entries == kVectorRuns) go();
    const int64_t vectors = entry.vectors();
    const bool is_long = entry.length() > kShortVector;
    VectorRun& run = job.runs[job.chunks.add(is_long ? vectors : (vectors + kVectorWarps - 1) / kVectorWarps)];
    run.weights = entry.weights().data, run.low = entry.low().data, run.delta = entry.delta().data;
    run.average = entry.average().data, run.before = entry.before().data, run.old_average = entry.old_average().data;
    run.mask = entry.mask().data, run.sets = entry.sets().as<Setting>();
    if constexpr (is_norm) run.most = entry.most(), run.shortened = entry.shortened();
    run.length = entry.length(), run.each = terms_of_warp(run.length, kVectorWarps), run.member_size = entry.member_size();
    run.inner = Divider(uint32_t(entry.inner())), run.vectors = uint32_t(vectors);
    run.dtype = entry.weights().dtype, run.low_dtype = entry.low().dtype;
    run.is_long = is_long;
  }
  if (job.chunks.entries > 0) go();
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void project(const Launch& launch) {
  if (Limit(launch.ints[1]) == Limit::simplex) {
    cuda::project_tensors<float, false>(launch);
    cuda::project_tensors<double, false>(launch);
  } else {
    cuda::project_tensors<float, true>(launch);
    cuda::project_tensors<double, true>(launch);
  }
}

// All threads that share a vector compute its factor or its threshold. Additions: in all lanes of a warp for each block of elements
// and for its neighbours, and in all threads for the warps of a long vector. Differences to the largest element are computed again in
// each pass: by the two counts and the sum of the first round, and by the result.
void executed_project(const Launch& launch, Counts& work) {
  using cuda::kWarp, cuda::kVectorWarps, cuda::kThreads;
  for (int64_t t = 0; t < launch.ints[0]; ++t) {
    const ProjectedEntry entry(launch, t);
    const int64_t size = entry.weights().size(), vectors = entry.vectors(), length = entry.length(),
                  blocks = order_blocks(length);
    const bool is_long = length > cuda::kShortVector, is_norm = entry.limit() != Limit::simplex;
    const int64_t each = cuda::terms_of_warp(length, kVectorWarps), warps = is_long ? (length + each - 1) / each : 1;
    const int64_t threads = is_long ? kThreads : kWarp;
    const int64_t sums = blocks * kWarp * (cuda::kShare - 1 + 5) + (blocks - warps) * kWarp + (is_long ? threads * 3 : 0);
    work.adds += vectors * sums - size;
    if (is_norm) {
      work.multiplies += vectors * (threads - 1) * (entry.limit() == Limit::max_norm),
          work.special += 2 * vectors * (threads - 1);
    } else {
      work.adds += 3 * size + vectors * (threads - 1), work.special += vectors * (threads - 1);
    }
  }
}

}  // namespace pb::kernels
