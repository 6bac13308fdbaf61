// The cost of updates, of clipping, and of changes of the control block.
#include "kernels/update.h"

#include "math/control.h"

namespace pb::kernels {

void update_cost(const Launch& launch, Cost& cost) {
  cost.bytes_read = cost.bytes_written = kControlSize * int64_t(sizeof(Setting));
  const auto& op = *static_cast<const Update*>(launch.table);
  const int64_t entries = launch.ints[0];
  const bool preview = launch.ints[1];
  if (preview) cost.bytes_written = 0;
  for (int64_t t = 0; t < entries; ++t) {
    const View &p = launch.out(int(t)), &g = launch.in(int(t));
    if (!g.data) continue;
    const int64_t slots = op.slots * p.size() * compute_size(compute_type(p.dtype));
    cost.add(op.counts, p.size());
    if (preview) cost.adds -= p.size();  // a preview does not add the delta to the weight
    cost.bytes_read += p.bytes() + g.distinct_bytes() + slots;
    cost.bytes_written += (preview ? 0 : p.bytes() + slots);
    if (launch.out(int(entries * (1 + op.slots) + t)).data) cost.bytes_written += p.bytes();
  }
}

void clip_norm_cost(const Launch& launch, Cost& cost) {
  for (int k = 0; k < launch.inputs; ++k) {
    if (!launch.in(k).data) continue;
    cost.adds += launch.in(k).size(), cost.multiplies += launch.in(k).size();
    cost.bytes_read += launch.in(k).distinct_bytes();
  }
  cost.special = 2;  // the root of the sum, and the division that gives the factor
  cost.bytes_written = 2 * sizeof(double);
}

void write_control_cost(const Launch& launch, Cost& cost) { cost.bytes_written = launch.ints[1] * int64_t(sizeof(double)); }

}  // namespace pb::kernels
