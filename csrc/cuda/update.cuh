// The kernel of an update: one launch updates all tensors of one compute type, and advances their sets.
#pragma once
#include <algorithm>
#include <new>
#include <vector>

#include "cuda/fold.cuh"
#include "cuda/gradients.cuh"
#include "cuda/trust_ratio.cuh"
#include "families/update.h"

namespace pb::cuda {

using kernels::kMaxSlots;

// One tensor of a launch. It consists of as many parts of `part` elements as the launch has members.
struct UpdateRun {
  char *weights, *delta, *average, *mask, *low;  // these are null if they are not needed, except the weights
  char* slots[kMaxSlots];
  Gradient gradient;
  int64_t part;
  Divider chunks;  // the number of chunks of a part
  DType dtype, low_dtype;
  uint32_t set;  // the set of the first member; those of the others follow
};

// The arguments of a launch, passed by value.
template <int kMax> struct UpdateJob {
  Setting* sets;
  Setting* advanced;  // for each run and member its set after the step, until the last block copies it
  const Setting* program;
  unsigned* ticket;  // counts the blocks that have ended; the last one advances the sets
  uint32_t members;
  uint32_t writes;      // a bit for each setting that a step changes
  uint32_t clocks = 0;  // the number of sets whose clock the last block advances: all of them in the last launch of a step
  bool preview;         // true: the deltas are written, and nothing else
  uint32_t rounding;    // as in families/update.h
  Chunks<kMax> chunks;
  UpdateRun runs[kMax];
};
constexpr int kFewRuns = 24, kManyRuns = 212;  // tensors per launch; a launch with fewer bytes of arguments starts sooner
static_assert(sizeof(UpdateJob<kManyRuns>) <= kMaxArguments);

// ---- what a step computes once for each set

// The Element of the rule for one set after another. Most sets of an optimizer are equal, so a block computes the Element again only
// where the settings change.
template <class U, class A> struct ChunkRule {
  using Element = typename U::template Element<A>;
  static_assert(kSetSize == kWarp && kMostFactors <= kWarp);
  Setting set[kSetSize], advanced[kSetSize];  // the set that these are computed from, before and after the step begins
  alignas(16) unsigned char element[sizeof(Element)], end[sizeof(Finish<A>)];

  __device__ const Finish<A>& finish() const { return *reinterpret_cast<const Finish<A>*>(end); }
  __device__ Setting step() const { return advanced[kStep]; }
  // True if the update changes nothing, which all sets of a launch then say.
  __device__ bool skips() const { return set[kGradientScale] == 0; }

  // Prepares the Element of a set. All threads of the block call this. `first` is true in the first call.
  __device__ const Element& of(const Setting* next, const Setting* program, bool first) {
    const int lane = int(threadIdx.x % kWarp);
    const long long bits = __double_as_longlong(next[lane]);
    if (first || !__all_sync(kFull, bits == __double_as_longlong(set[lane]))) {
      __syncthreads();  // all threads are done with the Element before it
      if (threadIdx.x < kWarp) {
        set[lane] = advanced[lane] = __longlong_as_double(bits);
        __syncwarp();
        // Each lane computes a factor of the rate.
        const int factors = factors_of(set);
        const Setting factor = lane < factors ? factor_of_rate(set, program, lane) : 1;
        Setting rate = 1;
        for (int k = 0; k < factors; ++k) rate *= __shfl_sync(kFull, factor, k);
        if (lane == 0) {
          begin<U>(advanced, rate);
          new (element) Element(advanced);
          new (end) Finish<A>(advanced);
        }
      }
      __syncthreads();
    }
    return *reinterpret_cast<const Element*>(element);
  }
};

// Advances the sets of a launch's tensors, and the clocks of a whole step. All threads of the last block call this.
template <int kMax> __device__ void advance_sets(const UpdateJob<kMax>& job) {
  if (job.chunks.entries == 0 && job.sets[kGradientScale] == 0) return;  // as skips(), of a step without elements
  for (uint32_t k = threadIdx.x; k < uint32_t(job.chunks.entries) * job.members * kSetSize; k += kThreads) {
    const uint32_t part = k / kSetSize, setting = k % kSetSize;
    Setting* const set = job.sets + int64_t(job.runs[part / job.members].set + part % job.members) * kSetSize;
    if (job.writes >> setting & 1) set[setting] = __ldcg(job.advanced + k);
  }
  __syncthreads();
  for (uint32_t k = threadIdx.x; k < job.clocks; k += kThreads) job.sets[int64_t(k) * kSetSize + kClock] += 1;
}

// ---- elements

// How a kernel reads the tensors of a launch. lean: weights and gradients are contiguous and of the compute type, without copies of
// half precision and random rounding. any: all others; dtypes and strides are looked up for each element.
enum class Reads { lean, any };

// A thread updates kEach elements at a time, which are kThreads apart. Their loads are issued before the first of them is used.
template <Reads reads> constexpr int kEach = reads == Reads::lean ? 2 : 1;
template <Reads reads> constexpr int64_t kChunk = int64_t{kEach<reads>} * kThreads;

// One element of a tensor.
template <Reads reads, class A> struct ElementOf {
  static constexpr DType kOwn = std::is_same_v<A, float> ? DType::f32 : DType::f64;
  static constexpr bool kMayBeHalf = reads == Reads::any && std::is_same_v<A, float>;
  const UpdateRun& run;
  int64_t i;

  __device__ DType dtype() const { return reads == Reads::lean ? kOwn : run.dtype; }
  __device__ A load(const char* from, DType dtype) const { return load_as<A>(dtype, from + i * size_of<A>(dtype)); }
  __device__ void store(char* to, DType dtype, A x) const { store_as<A>(dtype, to + i * size_of<A>(dtype), x); }
  __device__ A slot(int k) const { return load(run.slots[k], kOwn); }
  __device__ A weight() const {
    A p = load(run.weights, dtype());
    if constexpr (reads == Reads::any)
      if (run.low) refresh(run.low_dtype, run.low, i, p);
    return p;
  }
  __device__ A gradient() const {
    if constexpr (reads == Reads::lean) return load(run.gradient.data, kOwn);
    else return run.gradient.template at<A>(i);
  }
  // Rounds a number to the dtype of the weights.
  __device__ A rounded(A x) const {
    if constexpr (kMayBeHalf)
      if (run.dtype != DType::f32) return run.dtype == DType::f16 ? float(float16(x)) : float(bfloat16(x));
    return x;
  }
  // Rounds a sum to half precision at random. parameter, step, position: of the element, which choose its bits.
  __device__ A rounded_by_chance(A sum, uint32_t parameter, Setting step, int64_t position) const {
    if constexpr (kMayBeHalf) {
      const random::Words words = rounding_words(parameter, uint64_t(step), uint64_t(position) / kRoundingLanes);
      const uint32_t bits = rounding_bits(words, int(uint64_t(position) % kRoundingLanes));
      return run.dtype == DType::f16 ? rounded_at_random<float16>(sum, bits) : rounded_at_random<bfloat16>(sum, bits);
    }
    return sum;
  }
};

constexpr int kResident = 4;  // blocks that run at the same time on a multiprocessor: a thread may have 64 registers

// Each block computes the numbers of a step while its first elements are under way. The sets change when all blocks have read them:
// the last block to end copies what the others computed. Bound by memory: Adam moves 28 bytes per float weight and executes about 80
// instructions. A lean block has 2 KB of each tensor under way, and single elements are loaded as fast as packs, because a warp's
// elements are neighbours. The code of a lean kernel is 7 to 11 KB, and 20 KB of schedules that it runs once.
template <class U, class A, Reads reads, int kMax>
__global__ void __launch_bounds__(kThreads, kResident) update_kernel(const __grid_constant__ UpdateJob<kMax> job) {
  constexpr int kCount = kEach<reads>;
  __shared__ ChunkRule<U, A> rule;
  const uint32_t chunks = job.chunks.first[job.chunks.entries];
  for (uint32_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int t = job.chunks.find(chunk);
    const UpdateRun& run = job.runs[t];
    const uint32_t in_run = chunk - job.chunks.first[t], member = run.chunks.divide(in_run);
    const int64_t begin = member * run.part, end = begin + run.part;
    const int64_t first = begin + (in_run - member * run.chunks.divisor) * kChunk<reads> + threadIdx.x;
    A p[kCount], g[kCount], slots[kCount][U::kSlots + 1];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const ElementOf<reads, A> at{run, first + k * kThreads};
      if (at.i >= end) continue;
      p[k] = at.weight();
      g[k] = at.gradient();
#pragma unroll
      for (int j = 0; j < U::kSlots; ++j) slots[k][j] = at.slot(j);
    }
    const auto& f = rule.of(job.sets + int64_t(run.set + member) * kSetSize, job.program, chunk == blockIdx.x);
    if (rule.skips()) return;  // all blocks, so that none advances the sets
    // The block that has the first chunk of a part hands its set on.
    if (in_run == member * run.chunks.divisor && !job.preview && threadIdx.x < kSetSize)
      job.advanced[int64_t(t * job.members + member) * kSetSize + threadIdx.x] = rule.advanced[threadIdx.x];
    const Finish<A>& finish = rule.finish();
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const ElementOf<reads, A> at{run, first + k * kThreads};
      if (at.i >= end) break;
      const A old = p[k], change = kernels::change_of<U>(f, old, g[k], slots[k]);
      // A change is rounded before it is added, so that before + delta = after holds bit for bit where no bound cuts it off.
      const A added = at.rounded(change);
      const bool by_chance = job.rounding != 0 && at.kMayBeHalf && run.dtype != DType::f32;
      const uint32_t parameter = job.rounding - 1 + run.set / job.members;
      const A next =
          by_chance ? at.rounded_by_chance(old + change, parameter, rule.step(), at.i - begin) : at.rounded(old + added);
      const bool kept = !run.mask || run.mask[at.i] != 0;
      const A bounded = at.rounded(finish.bounded(next)), after = kept ? bounded : A(0);
      if (run.delta) {
        const A moved = at.rounded(after - old);
        at.store(run.delta, at.dtype(), !by_chance && after == next ? added : moved);
      }
      if (job.preview) continue;
      at.store(run.weights, at.dtype(), after);
      if constexpr (reads == Reads::any)
        if (run.low) at.store(run.low, run.low_dtype, after);
#pragma unroll
      for (int j = 0; j < U::kSlots; ++j) at.store(run.slots[j], at.kOwn, kept ? slots[k][j] : A(0));
      if (run.average) {
        const A average = finish.averaged(at.load(run.average, at.kOwn), after);
        at.store(run.average, at.kOwn, kept ? average : A(0));
      }
    }
  }
  if (!job.preview && last_to_arrive(job.ticket, gridDim.x)) advance_sets(job);
}

// ---- launches

// True if a kernel can read a tensor as Reads::lean says.
inline bool is_lean(const kernels::Entry& entry) {
  const View &weights = entry.weights(), &gradient = entry.gradient();
  return !entry.low().data && entry.random_bits() < 0 && weights.dtype == DType::f32 && gradient.dtype == DType::f32 &&
         gradient.contiguous();
}

template <int kMax> void add_run(UpdateJob<kMax>& job, const Launch& launch, int t, int64_t chunk, Copies& copies) {
  const kernels::Entry entry(launch, t);
  const View& weights = entry.weights();
  const int64_t members = launch.ints[1], part = weights.size() / members, chunks = (part + chunk - 1) / chunk;
  UpdateRun& run = job.runs[job.chunks.add(members * chunks)];
  run.weights = weights.data;
  run.delta = entry.delta().data, run.average = entry.average().data, run.mask = entry.mask().data;
  run.low = entry.low().data;
  run.dtype = weights.dtype, run.low_dtype = entry.low().dtype;
  run.part = part;
  run.chunks = Divider(uint32_t(chunks));
  run.set = uint32_t(t * members);
  run.gradient = Gradient(launch.in(t), copies);
  for (int k = 0; k < entry.slots; ++k) run.slots[k] = entry.slot(k).data;
}

// Updates the tensors whose compute type is A. The last launch ends the step if `ends`.
template <class U, class A, Reads reads, int kMax> void update_all(const Launch& launch, bool ends, Copies& copies) {
  UpdateJob<kMax> job;
  job.sets = kernels::sets_of(launch);
  job.program = kernels::program_of(launch);
  job.members = uint32_t(launch.ints[1]);
  job.preview = launch.ints[2] != 0;
  job.rounding = uint32_t(launch.ints[3]);
  job.ticket = tickets();
  job.writes = static_cast<const kernels::Update*>(launch.table)->writes;
  const auto go = [&] {
    Scratch scratch;
    job.advanced = scratch.take<Setting>(std::max(int64_t{1}, int64_t(job.chunks.entries) * job.members * kSetSize));
    const int64_t fill = int64_t{kResident} * multiprocessors();  // the number of blocks that run at the same time
    const int64_t blocks =
        std::max<int64_t>(job.chunks.count(), job.clocks > 0);  // one advances the clocks without any weights
    start(update_kernel<U, A, reads, kMax>, dim3(unsigned(std::min(blocks, fill))), kThreads, 0, job);
    job.chunks.entries = 0;
  };
  for (int t = 0; t < launch.ints[0]; ++t) {
    if (!launch.in(t).data || compute_type(launch.in(t).dtype) != compute_of<A>) continue;
    if (job.chunks.entries == kMax) go();
    add_run(job, launch, t, kChunk<reads>, copies);
  }
  if (ends) job.clocks = uint32_t(launch.ints[0] * launch.ints[1]);
  go();
}

// Returns the function update_all of each row of math/update.def, in their order. The instantiations are in sources that CMake
// generates, because all kernels together take long to compile.
using UpdateAll = void (*)(const Launch& launch, bool ends, Copies& copies);
template <class A, Reads reads, int kMax> std::vector<UpdateAll> update_rows() {
  std::vector<UpdateAll> rows;
  kernels::each_update(
      [&](auto rule, const char*, const char*) { rows.push_back(update_all<typename decltype(rule)::type, A, reads, kMax>); });
  return rows;
}
extern template std::vector<UpdateAll> update_rows<float, Reads::lean, kFewRuns>();
extern template std::vector<UpdateAll> update_rows<float, Reads::lean, kManyRuns>();
extern template std::vector<UpdateAll> update_rows<float, Reads::any, kManyRuns>();
extern template std::vector<UpdateAll> update_rows<double, Reads::any, kManyRuns>();

}  // namespace pb::cuda
