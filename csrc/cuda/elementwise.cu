// The table of elementwise ops.
#include "cuda/elementwise.cuh"

namespace pb::kernels {

// A thread computes four elements, also at the end.
void executed_elements(const Launch& launch, Counts& work) {
  const auto& op = *static_cast<const Elementwise*>(launch.table);
  const View& last = launch.in(launch.inputs - 1);
  if (op.conditions > 0 || compute_type(last.dtype) != Compute::f32 || !cuda::by_packs(launch.operands, launch.inputs)) return;
  work.add(op.counts, (4 - launch.out().size() % 4) % 4);
}

const std::vector<const Elementwise*>& elementwise() {
  static const std::vector<const Elementwise*> table = [] {
    cuda::Rows rows;
    cuda::add_unary(rows), cuda::add_unary_pullback(rows);
    cuda::add_binary(rows), cuda::add_binary_pullback(rows);
    return rows;
  }();
  return table;
}

}  // namespace pb::kernels
