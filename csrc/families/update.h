// Optimizer updates: one launch for all tensors, with the rules of math/update.h.
#pragma once
#include <utility>
#include <vector>

#include "families/executed.h"
#include "launch/door.h"
#include "math/counting.h"
#include "math/update.h"

namespace pb::kernels {

constexpr int kMaxSlots = 3;

// An op of this family, as the bindings and the cost formula see it: a row of math/update.def.
//
// Outputs of an update of `entries` tensors: the weights, then the entries of each slot, then the moving averages of the weights, then
// the masks (bytes; a weight whose byte is 0 becomes 0, with its slots and its average), then the copies of half precision for which
// the weights are the masters, then the deltas, then the table of sets. Inputs: the gradients. data is null for a tensor that is not
// needed, and for a missing gradient; its entry stays as it is, with its sets. All tensors except the gradients are flat and
// contiguous. Slots and averages of half precision weights are float32; their gradient may be, too, if the weights are rounded at
// random or have masters. Each tensor consists of `members` parts of equal size, one after another. Part m of entry t has set
// t * members + m; the rows of the table after these sets are the program of the schedules.
// ints: entries, members, preview (1: the deltas are written, and nothing else), rounding (0: half precision weights are rounded to
// the nearest number; k + 1: at random, by the bits of parameter k + t for entry t). table: the Update.
struct Update {
  Kernel kernel;
  int slots;
  Counts counts;    // the work of one element, p += delta included, measured by running the rule on the counting scalar
  uint32_t writes;  // a bit for each setting that a step writes into a set, measured by beginning a step
  // The launch before the update, for rules that need it; run is null for others. Its operands are those of the update, and it
  // writes the trust ratio of each part with a gradient into its set.
  Kernel measure;
};

// The operands of entry t, by name.
struct Entry {
  const Launch& launch;
  int t, entries, slots;
  Entry(const Launch& of, int64_t entry)
      : launch(of), t(int(entry)), entries(int(of.ints[0])), slots(static_cast<const Update*>(of.table)->slots) {}
  const View& weights() const { return launch.out(t); }
  const View& slot(int k) const { return launch.out(entries * (1 + k) + t); }
  const View& average() const { return launch.out(entries * (1 + slots) + t); }
  const View& mask() const { return launch.out(entries * (2 + slots) + t); }
  const View& low() const { return launch.out(entries * (3 + slots) + t); }
  const View& delta() const { return launch.out(entries * (4 + slots) + t); }
  const View& gradient() const { return launch.in(t); }
  // The number of the parameter whose random bits round the weights, or -1 if they are rounded to the nearest number.
  int64_t random_bits() const { return launch.ints[3] == 0 ? -1 : launch.ints[3] - 1 + t; }
};
constexpr int kTensorsBesidesSlots = 5;  // the weights, their average, mask, copy of half precision and delta

inline Setting* sets_of(const Launch& launch) { return launch.out(launch.outputs - 1).as<Setting>(); }
inline const Setting* program_of(const Launch& launch) { return sets_of(launch) + launch.ints[0] * launch.ints[1] * kSetSize; }

// True if the sets, which all agree, say that the update changes nothing. It asks one that an update reads, if there is one.
inline bool skips(const Launch& launch) {
  int64_t t = 0;
  while (t < launch.ints[0] - 1 && !launch.in(int(t)).data) ++t;
  return launch.ints[0] > 0 && sets_of(launch)[t * launch.ints[1] * kSetSize + kGradientScale] == 0;
}

inline int settings_in(uint32_t mask) {
  int count = 0;
  for (; mask != 0; mask &= mask - 1) ++count;
  return count;
}

inline void update_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Update*>(launch.table);
  const int64_t entries = launch.ints[0], set_bytes = launch.ints[1] * kSetBytes;
  const int64_t written_bytes = launch.ints[1] * settings_in(op.writes) * int64_t(sizeof(Setting));
  const bool preview = launch.ints[2];
  for (int64_t t = 0; t < entries; ++t) {
    const Entry entry(launch, t);
    const View &p = entry.weights(), &g = entry.gradient();
    if (!g.data) {
      const int64_t clocks = preview ? 0 : launch.ints[1] * int64_t(sizeof(Setting));
      cost.bytes_read += clocks, cost.bytes_written += clocks;
      continue;
    }
    const bool averages = entry.average().data && !preview;
    const int64_t state = (op.slots + averages) * p.size() * compute_size(compute_type(p.dtype));
    cost.add(op.counts, p.size());
    if (averages) cost.adds += p.size(), cost.multiplies += 2 * p.size();
    cost.bytes_read += p.bytes() + g.distinct_bytes() + state + set_bytes;
    cost.bytes_written += preview ? 0 : p.bytes() + state + written_bytes;
    if (entry.low().data) cost.bytes_read += entry.low().bytes(), cost.bytes_written += preview ? 0 : entry.low().bytes();
    if (entry.mask().data) cost.bytes_read += p.size();
    if (entry.delta().data) cost.bytes_written += p.bytes(), cost.adds += p.size();  // what was added: after - before
  }
}

// The squares of the weights and of the direction are summed; then there are two roots and a division for each set.
inline void measure_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Update*>(launch.table);
  for (int64_t t = 0; t < launch.ints[0]; ++t) {
    const Entry entry(launch, t);
    const View &p = entry.weights(), &g = entry.gradient();
    if (!g.data) continue;
    cost.add(op.counts, p.size());
    cost.adds += p.size(), cost.multiplies += 2 * p.size();  // two sums; the weight is not updated
    cost.special += 3 * launch.ints[1];
    cost.bytes_read += p.bytes() + g.distinct_bytes() + op.slots * p.size() * compute_size(compute_type(p.dtype));
    cost.bytes_read += launch.ints[1] * kSetBytes + (entry.low().data ? entry.low().bytes() : 0);
    cost.bytes_written += launch.ints[1] * int64_t(sizeof(Setting));
  }
}

// Returns one entry per row, in the order of the rows. Each backend defines this function.
const std::vector<const Update*>& updates();

// The part of a tensor that belongs to one member: the elements from `begin` on.
struct MemberRange {
  int64_t begin, size;
  MemberRange(const View& tensor, int64_t members, int64_t member)
      : begin(tensor.size() / members * member), size(tensor.size() / members) {}
};

// Writes the joint norm of the gradients of each member, and the factor that scales them, into all sets of the member.
// out: the table of sets, and optionally the numbers of a loss scaler, which multiplied the loss; kGradientScale of all sets is then
// multiplied by unscaling(). in: the gradients, one for each entry (data is null for a missing one). ints: members, which is 1 with a
// scaler.
void clip_norm(const Launch& launch);
inline void clip_norm_cost(const Launch& launch, Cost& cost) {
  for (int k = 0; k < launch.inputs; ++k) {
    if (!launch.in(k).data) continue;
    cost.adds += launch.in(k).size(), cost.multiplies += launch.in(k).size();
    cost.bytes_read += launch.in(k).distinct_bytes();
  }
  const int64_t members = launch.ints[0], sets = members * launch.inputs;
  cost.special = members + sets;  // the root of each sum, and the division that gives each factor
  cost.multiplies += sets;        // by the scale of the gradients
  cost.bytes_read += sets * 2 * int64_t(sizeof(Setting));
  cost.bytes_written = sets * 2 * int64_t(sizeof(Setting));
  if (launch.outputs == 1) return;
  cost.bytes_read += 2 * int64_t(sizeof(ScalerNumber));  // the scale, and the count of checks; more after an overflow
  cost.bytes_written += sets * int64_t(sizeof(Setting)) + int64_t(sizeof(ScalerNumber));
}
inline ScalerNumber* scaler_of(const Launch& launch) { return launch.outputs > 1 ? launch.out(1).as<ScalerNumber>() : nullptr; }

// Changes the scale of a loss scaler for the next step. out: its numbers. reals: the factor of growth, that after an overflow, and the
// number of steps until the scale grows. The cost is that of a step that leaves the scale as it is.
void update_scale(const Launch& launch);
inline void update_scale_cost(const Launch&, Cost& cost) {
  cost.bytes_read = 4 * int64_t(sizeof(ScalerNumber)), cost.bytes_written = 3 * int64_t(sizeof(ScalerNumber));
}

// Scales the gradient of each unit to a norm of at most a share of the norm of the unit's weights. out: the scaled gradients,
// contiguous. in: the gradients; the weights, as matrices with a row for each unit; the table of sets, whose first one has the scale
// of the gradients; and the share, a float64 number. data is null for all tensors of a missing gradient. ints: entries.
// Factors that each later launch applies would save writing 4 bytes for each float32 weight, but they would be code and operands of
// the updates, the trust ratios, the joint norm and the rules of several launches, and a division for each element.
void clip_adaptive(const Launch& launch);
inline void clip_adaptive_cost(const Launch& launch, Cost& cost) {
  const int entries = int(launch.ints[0]);
  cost.bytes_read = 2 * int64_t(sizeof(Setting));
  for (int t = 0; t < entries; ++t) {
    const View &g = launch.in(t), &p = launch.in(entries + t);
    if (!g.data) continue;
    cost.adds += 2 * g.size(), cost.multiplies += 3 * g.size() + 2 * p.shape[0];
    cost.special += 3 * p.shape[0];  // for each unit two roots and a division
    cost.bytes_read += g.distinct_bytes() + p.bytes();
    cost.bytes_written += launch.out(t).bytes();
  }
}

// Writes the sets as they are after the step that comes next has begun, without the numbers of a rule, for rules that several
// launches compute. out: the copies. in: the table of sets. ints: the number of sets.
void begin_steps(const Launch& launch);
inline void begin_steps_cost(const Launch& launch, Cost& cost) {
  cost.bytes_read = cost.bytes_written = launch.ints[0] * kSetBytes;
}

// Moves the states of reduce-on-plateau in the program by one observation. out: the table of sets. in: the metric, a floating number
// or one for each member. ints: the number of sets, before the program. The cost takes each row for such a state.
void observe(const Launch& launch);
inline void observe_cost(const Launch& launch, Cost& cost) {
  const int64_t rows = launch.out().shape[0] - launch.ints[0];
  cost.bytes_read = rows * kSetBytes + launch.in().distinct_bytes() + int64_t(sizeof(Setting));
  cost.bytes_written = rows * kSetBytes;
}
// True for the state of a plateau whose schedule has begun. sets: any set has the number of the optimizer's steps.
PB_HD bool watches(const Setting* row, const Setting* sets) {
  return row[kSchedule] == Setting(Schedule::watch) && row[kClock] <= sets[kClock];
}

// out: the table of sets. ints: the first set to change, the step to the next one, the number of sets to change, the index of the
// first setting to change, and how many change. reals: their new values.
void write_settings(const Launch& launch);
inline void write_settings_cost(const Launch& launch, Cost& cost) {
  cost.bytes_written = launch.ints[2] * launch.ints[4] * int64_t(sizeof(Setting));
}

// Calls call(Tag<rule>{}, kernel's name, the name of the launch before it) for each row.
template <class Call> void each_update(Call&& call) {
#define PB_UPDATE(name, ...) \
  call(Tag<__VA_ARGS__>{}, #name "_step", #name "_ratio");  // a rule's template arguments contain commas
#include "math/update.def"
}

// Returns the change that rule U adds to a weight, and updates the weight's slots, which are elements of one array.
template <class U, class A, std::size_t... k>
PB_HD A change_of(const typename U::template Element<A>& f, A p, A g, [[maybe_unused]] A* slots, std::index_sequence<k...>) {
  return f(p, g, slots[k]...);
}
template <class U, class A> PB_HD A change_of(const typename U::template Element<A>& f, A p, A g, A* slots) {
  return change_of<U>(f, p, g, slots, std::make_index_sequence<U::kSlots>());
}

// Returns a bit for each setting that a step of rule U writes: those that change, whatever they were.
template <class U> uint32_t settings_written() {
  uint32_t written = 1u << kClock;
  for (const Setting before : {0.5, 0.25}) {
    Setting set[kSetSize];
    for (Setting& x : set) x = before;
    begin<U>(set, 1 / before / before);
    for (int k = 0; k < kSetSize; ++k) written |= uint32_t(set[k] != before) << k;
  }
  return written;
}

// Returns the row's entry for the bindings.
template <class U> Update entry(const char* name, void (*run)(const Launch&), const char* measure,
                                void (*ratio)(const Launch&)) {
  static_assert(U::kSlots <= kMaxSlots && kHyper + U::kHypers <= kSetSize);
  Setting set[kSetSize];
  for (Setting& x : set) x = 0.5;
  const typename U::template Element<CountingScalar> f(set);
  const CountingScalar p(0.5), g(0.5);
  CountingScalar slots[kMaxSlots] = {p, p, p};
  const Counts counts = counts_of([&] { (void)(p + change_of<U>(f, p, g, slots)); });
  const Kernel before{measure, kMeasured<U> ? ratio : nullptr, measure_cost, executed_measure};
  return {{name, run, update_cost, executed_update}, U::kSlots, counts, settings_written<U>(), before};
}

}  // namespace pb::kernels
