// The table of elementwise ops.
#include "cuda/elementwise.cuh"

namespace pb::kernels {

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
