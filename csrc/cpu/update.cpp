// Updates all tensors of an optimizer in blocks. The deltas of a block are computed into a buffer in the L1 cache, and then
// applied.
#include "cpu/update.h"

#include <algorithm>
#include <cstring>

#include "cpu/nontemporal.h"
#include "cpu/pieces.h"
#include "cpu/pool.h"
#include "cpu/reduce.h"
#include "cpu/scratch.h"
#include "cpu/squares.h"
#include "cpu/stream.h"

namespace pb::cpu {

using kernels::Update;

PreparedSets::PreparedSets(const Launch& launch, bool advances, void (*measuring)(Setting*)) {
  const int64_t entries = launch.ints[0], members = launch.ints[1];
  Setting* const sets = kernels::sets_of(launch);
  of_set_ = scratch_.take<const PreparedSet*>(entries * members);
  PreparedSet* next = scratch_.take<PreparedSet>(entries * members);
  Setting now[kSetSize], before[kSetSize], advanced[kSetSize];
  const PreparedSet* last = nullptr;
  Compute compute = Compute::f32;
  const auto& op = static_cast<const HostUpdate&>(*static_cast<const Update*>(launch.table));
  for (int64_t s = 0; s < entries * members; ++s) {
    const View& g = launch.in(int(s / members));
    Setting* const set = sets + s * kSetSize;
    if (!g.data) {
      if (advances) set[kClock] += 1;
      continue;
    }
    // Most sets of an optimizer are equal, so that most are not computed again.
    std::memcpy(now, set, sizeof now);
    if (!last || compute != compute_type(g.dtype) || std::memcmp(now, before, sizeof before) != 0) {
      compute = compute_type(g.dtype);
      std::memcpy(before, now, sizeof before);
      std::memcpy(advanced, now, sizeof advanced);
      begin_step(advanced, kernels::program_of(launch));
      op.advance(advanced);
      if (measuring) measuring(advanced);
      std::memcpy(next->set, advanced, sizeof advanced);
      op.build[int(compute)](advanced, next->element);
      advanced[kClock] += 1;
      last = next++;
    }
    of_set_[s] = last;
    if (!advances) continue;
    for (uint32_t rest = op.writes; rest != 0; rest &= rest - 1) {
      const int k = __builtin_ctz(rest);
      set[k] = advanced[k];
    }
  }
}

}  // namespace pb::cpu

namespace pb::kernels {
namespace {

using namespace cpu;

// The part of a block that follows the rule. Pointers are null for what an entry does not have.
struct After {
  const PreparedSet& prepared;
  void* change;  // what the rule adds, in the compute type
  void *weights, *delta, *average;
  const uint8_t* mask;
  int64_t random_bits;  // as in Entry
  int64_t first;        // the position of the first element in its network
};

// Replaces the changes by the new weights, rounded at random.
template <class T> void round_at_random(int64_t n, const After& after) {
  using A = acc_t<T>;
  constexpr int64_t kMostCounters = kBlock / kRoundingLanes + 1;
  alignas(64) uint32_t words[4 * kMostCounters];
  alignas(64) uint16_t random[kRoundingLanes * kMostCounters];
  const uint64_t parameter = uint64_t(after.random_bits), step = uint64_t(after.prepared.set[kStep]);
  const int64_t block = after.first / kRoundingLanes, skipped = after.first % kRoundingLanes;
  const int64_t counters = (skipped + n + kRoundingLanes - 1) / kRoundingLanes;
#pragma GCC ivdep
  for (int64_t c = 0; c < counters; ++c) {
    const random::Words drawn = rounding_words(parameter, step, uint64_t(block + c));
    for (int k = 0; k < 4; ++k) words[4 * c + k] = drawn.w[k];
  }
  for (int64_t i = 0; i < kRoundingLanes * counters; ++i) random[i] = uint16_t(words[i / 2] >> (i % 2 * 16));
  A* __restrict change = static_cast<A*>(after.change);
  const T* __restrict p = static_cast<const T*>(after.weights);
  const uint16_t* __restrict bits = random + skipped;
  for (int64_t i = 0; i < n; ++i) change[i] = rounded_at_random<T>(A(p[i]) + change[i], bits[i]);
}

// Adds the changes to the weights, within their bounds, and writes what was added. A change is rounded to the dtype of its weight
// first, so that before + delta = after holds bit for bit where no bound cuts it off. done: the changes are the new weights already.
template <class T, bool masked, bool deltas, bool done> void apply(int64_t n, const After& after) {
  using A = acc_t<T>;
  const Finish<A> finish(after.prepared.set);
  const A* __restrict change = static_cast<const A*>(after.change);
  const uint8_t* __restrict mask = after.mask;
  T* __restrict p = static_cast<T*>(after.weights);
  T* __restrict delta = static_cast<T*>(after.delta);
  for (int64_t i = 0; i < n; ++i) {
    const A old = A(p[i]), rounded = A(T(change[i])), next = done ? change[i] : A(T(old + rounded));
    A kept = A(T(finish.bounded(next)));
    if constexpr (masked) kept = mask[i] ? kept : A(0);
    if constexpr (deltas) {
      const A moved = kept - old;
      delta[i] = T(kept == next && !done ? rounded : moved);
    }
    p[i] = T(kept);
  }
}

// Updates the moving averages of weights that apply() has changed.
template <class T> void average(int64_t n, const After& after) {
  using A = acc_t<T>;
  const Finish<A> finish(after.prepared.set);
  const T* __restrict p = static_cast<const T*>(after.weights);
  A* __restrict mean = static_cast<A*>(after.average);
  for (int64_t i = 0; i < n; ++i) mean[i] = finish.averaged(mean[i], A(p[i]));
}

template <class T, bool done> void apply(int64_t n, const After& after) {
  if (after.mask) (after.delta ? apply<T, true, true, done> : apply<T, true, false, done>)(n, after);
  else (after.delta ? apply<T, false, true, done> : apply<T, false, false, done>)(n, after);
  if (after.average) average<T>(n, after);
}
template <class T> void apply(int64_t n, const After& after) {
  if constexpr (sizeof(T) == 2) {
    if (after.random_bits >= 0) {
      round_at_random<T>(n, after);
      return apply<T, true>(n, after);
    }
  }
  apply<T, false>(n, after);
}

void apply(DType dtype, int64_t n, const After& after) {
  switch (dtype) {
    case DType::f16: return apply<float16>(n, after);
    case DType::bf16: return apply<bfloat16>(n, after);
    case DType::f32: return apply<float>(n, after);
    default: return apply<double>(n, after);
  }
}

// Replaces masters whose half precision weight has been assigned since the last step.
template <class T> void refresh(int64_t n, const void* low, void* masters) {
  const T* __restrict x = static_cast<const T*>(low);
  float* __restrict p = static_cast<float*>(masters);
  for (int64_t i = 0; i < n; ++i) p[i] = master_of(p[i], x[i]);
}

// Sets the elements that a mask excludes to 0, so that a weight that comes back starts like a new one.
void clear(Compute compute, int64_t n, const uint8_t* mask, void* elements) {
  const auto each = [&](auto* __restrict x) {
    for (int64_t i = 0; i < n; ++i) x[i] = mask[i] ? x[i] : 0;
  };
  if (compute == Compute::f32) each(static_cast<float*>(elements));
  else each(static_cast<double*>(elements));
}

// Updates the elements [first, last) of one member of entry t, whose elements begin at `start`. gradients: see UpdateStep.
// nontemporal: deltas are written so.
void update_entry(const Launch& launch, const PreparedSet& prepared, int64_t t, int64_t start, int64_t first, int64_t last,
                  const char* gradients, bool nontemporal) {
  const auto& op = static_cast<const HostUpdate&>(*static_cast<const Update*>(launch.table));
  const Entry entry(launch, t);
  const bool preview = launch.ints[2];
  const DType dtype = entry.weights().dtype;
  const Compute compute = compute_type(dtype);
  const bool direct = dtype == storage_of(compute);
  const int64_t size = item_size(dtype), wide = compute_size(compute);
  alignas(64) char staged[2][kBlockBytes], change[kBlockBytes], copies[kMaxSlots + 1][kBlockBytes], moved[kBlockBytes];
  const DType given = entry.gradient().dtype;
  Reader gradient(gradients ? flat_view(gradients, given, last - first) : entry.gradient(), compute);
  const int64_t offset = gradients ? start + first : 0;
  const bool added_as_is = op.adds && entry.random_bits() < 0;
  nontemporal = nontemporal && entry.delta().data;
  for (int64_t i = start + first; i < start + last; i += kBlock) {
    const int64_t n = std::min(kBlock, start + last - i);
    const auto at = [i](const View& view, int64_t bytes) { return view.data ? view.data + i * bytes : nullptr; };
    const auto changed = [&](char* data, int64_t bytes, int k) {  // a preview changes a copy
      return preview ? static_cast<char*>(std::memcpy(copies[k], data, n * bytes)) : data;
    };
    char* const p = changed(at(entry.weights(), size), size, kMaxSlots);
    char* const low = at(entry.low(), 2);
    const void* const g = gradient.block(i - offset, n, staged[1]);
    After after{prepared,
                added_as_is ? const_cast<void*>(g) : change,
                p,
                nontemporal ? moved : at(entry.delta(), size),
                nullptr,
                nullptr,
                entry.random_bits(),
                i - start};
    after.mask = reinterpret_cast<const uint8_t*>(at(entry.mask(), 1));
    if (!preview) after.average = at(entry.average(), wide);
    if (low) (entry.low().dtype == DType::f16 ? refresh<float16> : refresh<bfloat16>)(n, low, p);
    if (!direct && !added_as_is) load(dtype, compute, p, size, n, staged[0]);
    void* slots[kMaxSlots];
    for (int k = 0; k < op.slots; ++k) slots[k] = changed(at(entry.slot(k), wide), wide, k);
    if (!added_as_is) op.loop[int(compute)](n, prepared.element, direct ? p : staged[0], g, slots, change);
    apply(dtype, n, after);
    if (nontemporal) store_nontemporal(at(entry.delta(), size), moved, n * size);
    if (low && !preview) store(compute, entry.low().dtype, p, n, low, 2);
    if (!after.mask) continue;
    for (int k = 0; k < op.slots; ++k) clear(compute, n, after.mask, slots[k]);
    if (after.average) clear(compute, n, after.mask, after.average);
  }
  if (nontemporal) nontemporal_fence();
}

int64_t bytes_of_deltas(const Launch& launch) {
  int64_t bytes = 0;
  for (int64_t t = 0; t < launch.ints[0]; ++t)
    if (const View& delta = Entry(launch, t).delta(); delta.data) bytes += delta.bytes();
  return bytes;
}

void update(const Launch& launch) {
  const int64_t entries = launch.ints[0], members = launch.ints[1];
  const UpdateStep step(launch);
  const Pieces pieces{&launch.in(), entries, members, 1};
  parallel_for(pieces.count(), kUpdateGrain, [&](int64_t begin, int64_t end) {
    pieces.each(begin, end, [&](int64_t t, int64_t member, int64_t first, int64_t last) {
      const int64_t start = MemberRange(launch.out(int(t)), members, member).begin;
      step.run(t, start + first, start + last);
    });
  });
}

// Adds up the squares of each part's weights and of its direction, in blocks, and writes their trust ratio.
void measure(const Launch& launch) {
  if (skips(launch)) return;
  const auto& op = static_cast<const HostUpdate&>(*static_cast<const Update*>(launch.table));
  const int64_t entries = launch.ints[0], members = launch.ints[1];
  const PreparedSets prepared(launch, false, op.measuring);
  const Pieces blocks{&launch.in(), entries, members, kBlock};
  Scratch scratch;
  double* const sums[2] = {scratch.take<double>(std::max<int64_t>(1, blocks.count())),
                           scratch.take<double>(std::max<int64_t>(1, blocks.count()))};
  parallel_for(blocks.count(), std::max<int64_t>(1, kUpdateGrain / kBlock), [&](int64_t begin, int64_t end) {
    int64_t at = begin;
    blocks.each(begin, end, [&](int64_t t, int64_t member, int64_t first, int64_t last) {
      const Entry entry(launch, t);
      const View& p = entry.weights();
      const MemberRange range(p, members, member);
      const Compute compute = compute_type(p.dtype);
      const int64_t wide = compute_size(compute);
      alignas(64) char staged[2][kBlockBytes], change[kBlockBytes], copies[kMaxSlots][kBlockBytes];
      Reader weights(flat_view(p.data, p.dtype, p.size()), compute), gradient(entry.gradient(), compute);
      for (int64_t i = first * kBlock; i < std::min(range.size, last * kBlock); i += kBlock, ++at) {
        const int64_t n = std::min(kBlock, range.size - i), from = range.begin + i;
        void* slots[kMaxSlots];
        for (int k = 0; k < op.slots; ++k) slots[k] = std::memcpy(copies[k], entry.slot(k).data + from * wide, n * wide);
        const void* x = weights.block(from, n, staged[0]);
        if (const View& low = entry.low(); low.data) {
          x = std::memcpy(staged[0], x, n * wide);
          (low.dtype == DType::f16 ? refresh<float16> : refresh<bfloat16>)(n, low.data + from * 2, staged[0]);
        }
        op.loop[int(compute)](n, prepared[t * members + member].element, x, gradient.block(from, n, staged[1]), slots, change);
        sums[0][at] = sum_of_squares(compute, n, x), sums[1][at] = sum_of_squares(compute, n, change);
      }
    });
  });
  double *weights = sums[0], *direction = sums[1];
  for (int64_t member = 0; member < members; ++member) {
    for (int64_t t = 0; t < entries; ++t) {
      const int64_t count = blocks.of(t);
      if (count == 0) continue;
      reduce_pairs<sum_reduce>(count, 1, weights);
      reduce_pairs<sum_reduce>(count, 1, direction);
      write_ratio(sets_of(launch) + (t * members + member) * kSetSize, *weights, *direction);
      weights += count, direction += count;
    }
  }
}

template <class U> constexpr void (*measuring_of())(Setting*) {
  if constexpr (kMeasured<U>) return U::measuring;
  else return nullptr;
}

std::vector<HostUpdate> host_updates() {
  std::vector<HostUpdate> rows;
  each_update([&](auto rule, const char* name, const char* ratio) {
    using U = typename decltype(rule)::type;
    rows.push_back({entry<U>(name, update, ratio, measure),
                    std::is_same_v<U, AddChange>,
                    U::advance,
                    measuring_of<U>(),
                    {build_element<U, float>, build_element<U, double>},
                    {update_loop<U, float>, update_loop<U, double>}});
  });
  return rows;
}

}  // namespace
}  // namespace pb::kernels

namespace pb::cpu {

UpdateStep::UpdateStep(const Launch& launch)
    : launch_(launch),
      skips_(kernels::skips(launch)),
      nontemporal_(kernels::bytes_of_deltas(launch) >= kNontemporalBytes),
      sets_(launch, !launch.ints[2] && !skips_) {}

bool is_update(const Launch& launch) { return launch.kernel->run == kernels::update; }

void UpdateStep::run(int64_t t, int64_t begin, int64_t end, const char* gradients) const {
  if (skips_) return;
  const int64_t members = launch_.ints[1], size = launch_.out(int(t)).size() / members;
  const int64_t bytes = item_size(launch_.in(int(t)).dtype);
  for (int64_t i = begin; i < end;) {
    const int64_t member = i / size, stop = std::min(end, (member + 1) * size);
    const int64_t start = member * size;
    kernels::update_entry(launch_, sets_[t * members + member], t, start, i - start, stop - start,
                          gradients ? gradients + (i - begin) * bytes : nullptr, nontemporal_);
    i = stop;
  }
}

}  // namespace pb::cpu

namespace pb::kernels {

const std::vector<const Update*>& updates() {
  static const std::vector<HostUpdate> rows = host_updates();
  static const std::vector<const Update*> table = [] {
    std::vector<const Update*> entries;
    for (const Update& row : rows) entries.push_back(&row);
    return entries;
  }();
  return table;
}

// For each part one addition less than there are squares.
void executed_measure(const Launch& launch, Counts& work) {
  for (int64_t t = 0; t < launch.ints[0]; ++t)
    if (launch.in(int(t)).data) work.adds -= 2 * launch.ints[1];
}

}  // namespace pb::kernels
