// What an elementwise launch costs.
#include "kernels/elementwise.h"

namespace pb::kernels {

void elementwise_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Elementwise*>(launch.table);
  cost.add(op.counts, launch.out().size());
}

}  // namespace pb::kernels
