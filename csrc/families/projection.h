// Constraints along axes: one launch after an update projects the vectors of several tensors of weights.
#pragma once
#include "families/executed.h"
#include "launch/door.h"
#include "math/projection.h"

namespace pb::kernels {

// Operands of a projection of `entries` tensors. Outputs: the weights, as matrices of shape (outer, length, inner) whose vectors lie
// along the middle axis; their copies of half precision, which have to follow; the deltas of the update, which become what was added
// after the projection; and the moving averages. Inputs: the weights before the update, which deltas need; the averages before it;
// the masks (bytes; a weight whose byte is 0 is and stays 0, and is not a part of its vector); the sets of the tensor, one for each
// member, which averages need; and a number, the largest norm. data is null for what an entry does not have. All tensors are
// contiguous; averages have the compute type of the weights.
// ints: entries, the Limit.
struct ProjectedEntry {
  const Launch& launch;
  int t, entries;
  ProjectedEntry(const Launch& of, int64_t entry) : launch(of), t(int(entry)), entries(int(of.ints[0])) {}
  const View& weights() const { return launch.out(t); }
  const View& low() const { return launch.out(entries + t); }
  const View& delta() const { return launch.out(2 * entries + t); }
  const View& average() const { return launch.out(3 * entries + t); }
  const View& before() const { return launch.in(t); }
  const View& old_average() const { return launch.in(entries + t); }
  const View& mask() const { return launch.in(2 * entries + t); }
  const View& sets() const { return launch.in(3 * entries + t); }
  Setting most() const { return *launch.in(4 * entries + t).as<Setting>(); }

  Limit limit() const { return Limit(launch.ints[1]); }
  int64_t outer() const { return weights().shape[0]; }
  int64_t length() const { return weights().shape[1]; }
  int64_t inner() const { return weights().shape[2]; }
  int64_t vectors() const { return outer() * inner(); }
  int64_t member_size() const { return weights().size() / sets().shape[0]; }

  // The norm that vectors get which do not keep theirs. No rounding of their elements makes it larger than most().
  Setting shortened() const {
    if (limit() == Limit::unit_norm) return 1;
    const DType dtype = weights().dtype;
    const Setting rounding = dtype == DType::f16    ? 0x1p-10
                             : dtype == DType::bf16 ? 0x1p-7
                             : dtype == DType::f32  ? 0x1p-21
                                                    : 0x1p-50;
    return most() * (1 - rounding);
  }
};
constexpr int kProjectedOutputs = 4, kProjectedInputs = 5;  // per entry

void project(const Launch& launch);

// A norm: each element is scaled, squared and added, and then scaled twice. A distribution: differences to the largest element, their
// sum, and their differences to the threshold, if the first round finds it.
inline void project_cost(const Launch& launch, Cost& cost) {
  for (int64_t t = 0; t < launch.ints[0]; ++t) {
    const ProjectedEntry entry(launch, t);
    const int64_t size = entry.weights().size(), vectors = entry.vectors();
    if (entry.limit() == Limit::simplex) {
      cost.adds += 3 * size + vectors, cost.special += vectors;
    } else {
      cost.bytes_read += int64_t(sizeof(Setting));
      cost.adds += size, cost.multiplies += 4 * size + vectors * (entry.limit() == Limit::max_norm),
          cost.special += 2 * vectors;
    }
    if (entry.delta().data) cost.adds += size;
    if (entry.average().data) cost.adds += size, cost.multiplies += 2 * size;
    for (const View* read : {&entry.weights(), &entry.delta(), &entry.before(), &entry.old_average(), &entry.mask()})
      if (read->data) cost.bytes_read += read->bytes();
    if (entry.average().data) cost.bytes_read += 2 * entry.sets().shape[0] * int64_t(sizeof(Setting));
    for (const View* written : {&entry.weights(), &entry.low(), &entry.delta(), &entry.average()})
      if (written->data) cost.bytes_written += written->bytes();
  }
}

}  // namespace pb::kernels
