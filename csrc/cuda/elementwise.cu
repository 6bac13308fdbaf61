// The table of elementwise ops.
#include "cuda/elementwise.cuh"

namespace pb::kernels {

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
