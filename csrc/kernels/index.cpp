// Shapes around an axis, and what gathers cost.
#include "kernels/index.h"

#include <algorithm>

namespace pb::kernels {

Around around(const View& v, int axis) {
  Around a{1, v.shape[axis], 1};
  for (int d = 0; d < axis; ++d) a.outer *= v.shape[d];
  for (int d = axis + 1; d < v.ndim; ++d) a.inner *= v.shape[d];
  return a;
}

void take_cost(const Launch& launch, Cost& cost) {
  cost.bytes_written = launch.out().bytes();
  cost.bytes_read = std::min(launch.out().bytes(), launch.in(0).distinct_bytes()) + launch.in(1).distinct_bytes();
}
void take_along_axis_cost(const Launch& launch, Cost& cost) { take_cost(launch, cost); }

void one_hot_cost(const Launch&, Cost&) {}
void nonzero_cost(const Launch&, Cost&) {}

}  // namespace pb::kernels
