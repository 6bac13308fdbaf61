// What an elementwise launch costs.
#include "kernels/elementwise.h"

namespace pb::kernels {

void elementwise_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Elementwise*>(launch.table);
  const int64_t n = launch.out().size();
  cost.flops = n * op.flops;
  cost.special_ops = n * op.special;
}

}  // namespace pb::kernels
