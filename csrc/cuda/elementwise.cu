// The table of elementwise ops, and the work that their kernels do.
#include "cuda/elementwise.cuh"

namespace pb::kernels {

// A thread that works by packs computes four elements, even if fewer are left at the end.
void executed_elements(const Launch& launch, Counts& work) {
  const auto& op = *static_cast<const Elementwise*>(launch.table);
  const View& last = launch.in(launch.inputs - 1);
  if (op.conditions > 0 || compute_type(last.dtype) != Compute::f32 || !cuda::by_packs(launch.operands, launch.inputs)) return;
  work.add(op.counts, (4 - launch.out().size() % 4) % 4);
}

const std::vector<const Elementwise*>& elementwise() {
  static const std::vector<const Elementwise*> table = [] {
    std::vector<const Elementwise*> entries;
    each_unary(cuda::AddElementwise{entries}), each_unary_pullback(cuda::AddElementwise{entries});
    each_binary(cuda::AddElementwise{entries}), each_binary_pullback(cuda::AddElementwise{entries});
    return entries;
  }();
  return table;
}

}  // namespace pb::kernels
