// Running sums, products and extremes along an axis.
#pragma once
#include <vector>

#include "launch/door.h"

namespace pb::kernels {

// What the bindings know of an op.
// out: of the shape of x, contiguous. in: x. ints: axis, and whether from the end. table: the Cumulative.
struct Cumulative {
  Kernel kernel;
  bool wide;      // whole numbers and bool give results of 64 bits; else out has the dtype of x
  Counts counts;  // of one step
};

// Every op, once.
const std::vector<const Cumulative*>& cumulatives();
void cumulative_cost(const Launch& launch, Cost& cost);

}  // namespace pb::kernels
