// The work that the elementwise kernels do (families/executed.h).
#include "cuda/packs.h"
#include "families/elementwise.h"

namespace pb::kernels {

// A thread that works by packs computes four elements, even if fewer are left at the end.
void executed_elements(const Launch& launch, Counts& work) {
  const auto& op = *static_cast<const Elementwise*>(launch.table);
  const View& last = launch.in(launch.inputs - 1);
  if (op.conditions > 0 || compute_type(last.dtype) != Compute::f32 || !cuda::by_packs(launch.operands, launch.inputs)) return;
  work.add(op.counts, (4 - launch.out().size() % 4) % 4);
}

}  // namespace pb::kernels
