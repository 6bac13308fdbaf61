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
struct Run {
  char *weights, *delta, *average, *mask, *low;  // these are null if they are not needed, except the weights
  char* slots[kMaxSlots];
  Gradient gradient;
  int64_t part;
  Divider chunks;  // the number of chunks of a part
  DType dtype;     // of the weights
  uint32_t set;    // the set of the first member; those of the others follow
  bool packs;      // true if all of these can be read four elements at a time
};

// The arguments of a launch, passed by value.
template <int kMax> struct UpdateJob {
  Setting* sets;
  const Setting* program;
  unsigned* ticket;  // counts the blocks that have ended; the last one advances the sets
  uint32_t members;
  uint32_t clocks = 0;  // the number of sets whose clock the last block advances: all of them in the last launch of a step
  bool preview;         // true: the deltas are written, and nothing else
  uint32_t rounding;    // as in families/update.h
  Chunks<kMax> chunks;
  Run runs[kMax];
};
constexpr int kFewRuns = 24, kManyRuns = 212;  // tensors per launch; a launch with fewer bytes of arguments starts sooner
static_assert(sizeof(UpdateJob<kManyRuns>) <= kMaxArguments);

// A share is the elements that one thread updates at a time. A block takes one chunk of kThreads shares after another.
template <class A> constexpr int kPerThread = 32 / sizeof(A);
template <class A> constexpr int64_t kChunk = int64_t{kPerThread<A>} * kThreads;

// The elements of one share of a chunk, which belongs to one member: packs of four neighbours, or single elements that are kThreads
// apart.
struct Share {
  uint32_t member;
  int64_t first, end;
  bool packs;
  template <class A> __device__ Share(A, const Run& run, uint32_t chunk) : member(run.chunks.divide(chunk)), packs(run.packs) {
    const int64_t begin = member * run.part;
    first = begin + (chunk - member * run.chunks.divisor) * kChunk<A> + threadIdx.x * (run.packs ? 4 : 1);
    end = begin + run.part;
  }
};

template <class A> __device__ inline void load_share(const Share& share, DType dtype, const char* data, A (&x)[kPerThread<A>]) {
  if (share.packs) {
#pragma unroll
    for (int k = 0; k < kPerThread<A>; k += 4) {
      A four[4];
      load_pack(dtype, data, share.first + k * kThreads, share.end, four);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[k + j] = four[j];
    }
  } else {
#pragma unroll
    for (int k = 0; k < kPerThread<A>; ++k) {
      const int64_t i = share.first + k * kThreads;
      x[k] = i < share.end ? load_as<A>(dtype, data + i * size_of<A>(dtype)) : A(0);
    }
  }
}
template <class A> __device__ inline void load_share(const Share& share, const Gradient& gradient, A (&x)[kPerThread<A>]) {
  if (gradient.flat) return load_share(share, gradient.dtype, gradient.data, x);
#pragma unroll
  for (int k = 0; k < kPerThread<A>; ++k) {
    const int64_t i = share.first + k * kThreads;
    x[k] = i < share.end ? gradient.at<A>(i) : A(0);
  }
}
template <class A> __device__ inline void store_share(const Share& share, DType dtype, char* data,
                                                      const A (&x)[kPerThread<A>]) {
  if (share.packs) {
#pragma unroll
    for (int k = 0; k < kPerThread<A>; k += 4) {
      A four[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = x[k + j];
      store_pack(dtype, data, share.first + k * kThreads, share.end, four);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kPerThread<A>; ++k) {
      const int64_t i = share.first + k * kThreads;
      if (i < share.end) store_as<A>(dtype, data + i * size_of<A>(dtype), x[k]);
    }
  }
}

// Returns one bit for each element of a share: 0 for those that a mask excludes.
template <class A> __device__ inline uint32_t kept_of(const Share& share, const char* mask) {
  uint32_t kept = ~0u;
#pragma unroll
  for (int k = 0; k < kPerThread<A>; ++k) {
    const int64_t i = share.packs ? share.first + (k & ~3) * kThreads + (k & 3) : share.first + k * kThreads;
    if (i < share.end && mask[i] == 0) kept &= ~(1u << k);
  }
  return kept;
}

// Replaces masters whose half precision weight has been assigned since the last step.
__device__ inline void refresh(const Share& share, const Run& run, float (&p)[kPerThread<float>]) {
  float low[kPerThread<float>];
  load_share(share, run.gradient.dtype, run.low, low);
#pragma unroll
  for (int k = 0; k < kPerThread<float>; ++k)
    p[k] = run.gradient.dtype == DType::f16 ? master_of(p[k], float16(low[k])) : master_of(p[k], bfloat16(low[k]));
}
__device__ inline void refresh(const Share&, const Run&, double (&)[kPerThread<double>]) {}

// Rounds a delta to the dtype of its weight before it is added, so that before + delta = after holds bit for bit.
template <class A> __device__ inline A rounded(DType dtype, A x) {
  if constexpr (std::is_same_v<A, float>)
    if (dtype != DType::f32) return dtype == DType::f16 ? float(float16(x)) : float(bfloat16(x));
  return x;
}

// Adds changes to weights, and rounds the sums at random. step: with this one.
__device__ inline void round_at_random(const Share& share, const Run& run, uint32_t parameter, Setting step,
                                       float (&p)[kPerThread<float>], const float (&change)[kPerThread<float>]) {
  const int64_t start = share.end - run.part;
  random::Words words{};
#pragma unroll
  for (int k = 0; k < kPerThread<float>; ++k) {
    const int64_t i = (share.packs ? share.first + (k & ~3) * kThreads + (k & 3) : share.first + k * kThreads) - start;
    // The four elements of a pack have the bits of one counter.
    if (!share.packs || k % 4 == 0) words = rounding_words(parameter, uint64_t(step), uint64_t(i) / kRoundingLanes);
    const uint32_t bits = rounding_bits(words, int(uint64_t(i) % kRoundingLanes));
    const float next = p[k] + change[k];
    p[k] = run.dtype == DType::f16 ? rounded_at_random<float16>(next, bits) : rounded_at_random<bfloat16>(next, bits);
  }
}

// The Element of the rule for one chunk after another. Most sets of an optimizer are equal, so a block computes the Element again only
// where the settings change.
template <class U, class A> struct ChunkRule {
  using Element = typename U::template Element<A>;
  static_assert(kSetSize == kWarp && kMostFactors <= kWarp);
  Setting set[kSetSize], advanced[kSetSize];  // the set that these are computed from, before and after the step begins
  alignas(16) unsigned char element[sizeof(Element)], end[sizeof(Finish<A>)];

  __device__ const Finish<A>& finish() const { return *reinterpret_cast<const Finish<A>*>(end); }
  __device__ Setting step() const { return advanced[kStep]; }

  // Prepares the Element of a set. All threads of the block call this. `first` is true in the first call.
  __device__ const Element& of(const Setting* next, const Setting* program, bool first) {
    const int lane = int(threadIdx.x % kWarp);
    const long long bits = __double_as_longlong(next[lane]);
    if (first || !__all_sync(kFull, bits == __double_as_longlong(set[lane]))) {
      __syncthreads();  // all threads are done with the Element before it
      if (threadIdx.x < kWarp) {
        set[lane] = advanced[lane] = __longlong_as_double(bits);
        __syncwarp();
        // Each lane computes a factor of the rate: a loop would need more registers while they hold weights.
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

// The number of blocks that run at the same time on a multiprocessor: as many as its registers have room for. The powers that
// schedule-free rules and NAdam compute once per step take registers while the threads hold weights.
template <class U> constexpr bool kComputesPowers = false;
template <bool adaptive> constexpr bool kComputesPowers<ScheduleFree<adaptive>> = true;
template <Decay decay> constexpr bool kComputesPowers<NAdam<decay>> = true;
template <class U, class A> constexpr int kResident = U::kSlots < 3 && sizeof(A) == 4 && !kComputesPowers<U> ? 3 : 2;

// The last block to end advances the sets, which all blocks have read by then. Bound by memory: Adam moves 28 bytes per float weight
// and executes about 80 instructions. Rounding at random is a kernel of its own, because it needs registers, of which the others have
// none left.
template <class U, class A, int kMax, bool kAtRandom>
__global__ void __launch_bounds__(kThreads, kAtRandom ? 2 : kResident<U, A>)
    update_kernel(const __grid_constant__ UpdateJob<kMax> job) {
  constexpr DType kSlotType = std::is_same_v<A, float> ? DType::f32 : DType::f64;
  __shared__ ChunkRule<U, A> rule;
  A p[kPerThread<A>], g[kPerThread<A>], slots[U::kSlots + 1][kPerThread<A>];
  const uint32_t chunks = job.chunks.first[job.chunks.entries];
  uint32_t chunk = blockIdx.x;
  int t = 0;
  const auto load = [&] {
    t = job.chunks.find(chunk);
    const Run& run = job.runs[t];
    const Share share(A(0), run, chunk - job.chunks.first[t]);
    load_share(share, run.dtype, run.weights, p);
    load_share(share, run.gradient, g);
#pragma unroll
    for (int k = 0; k < U::kSlots; ++k) load_share(share, kSlotType, run.slots[k], slots[k]);
  };
  if (chunk < chunks) load();
  while (chunk < chunks) {
    const Run& run = job.runs[t];
    const DType dtype = run.dtype;
    const Share share(A(0), run, chunk - job.chunks.first[t]);
    const auto& f = rule.of(job.sets + int64_t(run.set + share.member) * kSetSize, job.program, chunk == blockIdx.x);
    const Finish<A>& finish = rule.finish();
    if (run.low) refresh(share, run, p);
    uint32_t cut = 0, kept = ~0u;  // one bit for each element that a bound has changed, and for each that the mask keeps
    const auto add_change = [&](int k) {
      g[k] = rounded(dtype, g[k]);
      const A next = rounded(dtype, p[k] + g[k]);
      p[k] = rounded(dtype, finish.bounded(next));
      cut |= uint32_t(!(p[k] == next)) << k;
    };
#pragma unroll
    for (int k = 0; k < kPerThread<A>; ++k) {
      A column[U::kSlots + 1];
#pragma unroll
      for (int j = 0; j < U::kSlots; ++j) column[j] = slots[j][k];
      g[k] = kernels::change_of<U>(f, p[k], g[k], column);
      if constexpr (!kAtRandom) add_change(k);
#pragma unroll
      for (int j = 0; j < U::kSlots; ++j) slots[j][k] = column[j];
    }
    if constexpr (kAtRandom) {
      if (size_of<A>(dtype) == 2) {
        round_at_random(share, run, job.rounding - 1 + run.set / job.members, rule.step(), p, g);
#pragma unroll
        for (int k = 0; k < kPerThread<A>; ++k) p[k] = rounded(dtype, finish.bounded(p[k]));
        cut = ~0u;
      } else {
#pragma unroll
        for (int k = 0; k < kPerThread<A>; ++k) add_change(k);
      }
    }
    if (run.mask) {
      kept = kept_of<A>(share, run.mask);
      cut |= ~kept;
#pragma unroll
      for (int k = 0; k < kPerThread<A>; ++k) {
        p[k] = kept >> k & 1 ? p[k] : A(0);
#pragma unroll
        for (int j = 0; j < U::kSlots; ++j) slots[j][k] = kept >> k & 1 ? slots[j][k] : A(0);
      }
    }
    if (run.delta) {  // The old weights are still in memory; few registers are free to keep them.
      A old[kPerThread<A>];
      load_share(share, dtype, run.weights, old);
      if (run.low) refresh(share, run, old);
#pragma unroll
      for (int k = 0; k < kPerThread<A>; ++k) {
        const A moved = rounded(dtype, p[k] - old[k]);
        g[k] = cut >> k & 1 ? moved : g[k];
      }
      store_share(share, dtype, run.delta, g);
    }
    if (!job.preview) {
      store_share(share, dtype, run.weights, p);
      if (run.low) store_share(share, run.gradient.dtype, run.low, p);
#pragma unroll
      for (int k = 0; k < U::kSlots; ++k) store_share(share, kSlotType, run.slots[k], slots[k]);
    }
    if (run.average && !job.preview) {
      A average[kPerThread<A>];
      load_share(share, kSlotType, run.average, average);
#pragma unroll
      for (int k = 0; k < kPerThread<A>; ++k) average[k] = kept >> k & 1 ? finish.averaged(average[k], p[k]) : A(0);
      store_share(share, kSlotType, run.average, average);
    }
    chunk += gridDim.x;
    if (chunk < chunks) load();
  }
  if (job.preview || !last_to_arrive(job.ticket, gridDim.x)) return;
  for (uint32_t k = threadIdx.x; k < uint32_t(job.chunks.entries) * job.members; k += kThreads)
    begin<U>(job.sets + int64_t(job.runs[k / job.members].set + k % job.members) * kSetSize, job.program);
  __syncthreads();
  for (uint32_t k = threadIdx.x; k < job.clocks; k += kThreads) job.sets[int64_t(k) * kSetSize + kClock] += 1;
}

inline bool aligned(const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % uintptr_t(bytes) == 0; }

template <int kMax> void add_run(UpdateJob<kMax>& job, const Launch& launch, int t, int64_t chunk, Copies& copies) {
  const kernels::Entry entry(launch, t);
  const View& weights = entry.weights();
  const int64_t size = item_size(weights.dtype), wide = compute_size(compute_type(weights.dtype)), members = launch.ints[1];
  const int64_t part = weights.size() / members, chunks = (part + chunk - 1) / chunk;
  Run& run = job.runs[job.chunks.add(members * chunks)];
  run.weights = weights.data;
  run.delta = entry.delta().data, run.average = entry.average().data, run.mask = entry.mask().data;
  run.low = entry.low().data;
  run.dtype = weights.dtype;
  run.part = part;
  run.chunks = Divider(uint32_t(chunks));
  run.set = uint32_t(t * members);
  run.gradient = Gradient(launch.in(t), copies);
  run.packs =
      run.gradient.packs() && aligned(run.weights, 4 * size) && aligned(run.delta, 4 * size) && aligned(run.average, 4 * wide);
  run.packs = run.packs && aligned(run.low, 8);
  run.packs = run.packs && (members == 1 || part % 4 == 0);
  for (int k = 0; k < entry.slots; ++k) {
    run.slots[k] = entry.slot(k).data;
    run.packs = run.packs && aligned(run.slots[k], 4 * wide);
  }
}

// The kernels of a rule for one compute type: for few tensors, for many, and for tensors whose sums are rounded at random.
enum class UpdateKind { few, many, at_random };

// Updates the tensors whose compute type is A. The last launch ends the step if `ends`.
template <class U, class A, UpdateKind kind> void update_all(const Launch& launch, bool ends, Copies& copies) {
  constexpr int kMax = kind == UpdateKind::few ? kFewRuns : kManyRuns;  // tensors of one launch
  constexpr bool kAtRandom = kind == UpdateKind::at_random;
  UpdateJob<kMax> job;
  job.sets = kernels::sets_of(launch);
  job.program = kernels::program_of(launch);
  job.members = uint32_t(launch.ints[1]);
  job.preview = launch.ints[2] != 0;
  job.rounding = uint32_t(launch.ints[3]);
  job.ticket = tickets();
  const auto go = [&] {
    const int64_t resident = kAtRandom ? 2 : kResident<U, A>;
    const int64_t fill = resident * multiprocessors();  // the number of blocks that run at the same time
    const int64_t blocks =
        std::max<int64_t>(job.chunks.count(), job.clocks > 0);  // one advances the clocks without any weights
    start(update_kernel<U, A, kMax, kAtRandom>, dim3(unsigned(std::min(blocks, fill))), kThreads, 0, job);
    job.chunks.entries = 0;
  };
  for (int t = 0; t < launch.ints[0]; ++t) {
    if (!launch.in(t).data || compute_type(launch.in(t).dtype) != compute_of<A>) continue;
    if (job.chunks.entries == kMax) go();
    add_run(job, launch, t, kChunk<A>, copies);
  }
  if (ends) job.clocks = uint32_t(launch.ints[0] * launch.ints[1]);
  go();
}

// Returns the function update_all of each row of math/update.def, in their order. The instantiations are in sources that CMake
// generates, because all kernels together take long to compile.
using UpdateAll = void (*)(const Launch& launch, bool ends, Copies& copies);
template <class A, UpdateKind kind> std::vector<UpdateAll> update_rows() {
  std::vector<UpdateAll> rows;
  kernels::each_update(
      [&](auto rule, const char*, const char*) { rows.push_back(update_all<typename decltype(rule)::type, A, kind>); });
  return rows;
}
extern template std::vector<UpdateAll> update_rows<float, UpdateKind::few>();
extern template std::vector<UpdateAll> update_rows<float, UpdateKind::many>();
extern template std::vector<UpdateAll> update_rows<float, UpdateKind::at_random>();
extern template std::vector<UpdateAll> update_rows<double, UpdateKind::many>();

// Returns the number of elements that threads compute for a tensor. They complete the last chunk with values that are not used.
template <class A> int64_t whole_chunks(int64_t size) { return (size + kChunk<A> - 1) / kChunk<A> * kChunk<A>; }

}  // namespace pb::cuda
