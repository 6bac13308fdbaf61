// The elementwise ops: one output from up to four inputs of the same shape after broadcasting.
#pragma once
#include <vector>

#include "launch/door.h"

namespace pb::kernels {

constexpr int kMaxArity = 4;

// What the bindings know of an op. The work of one element was measured by running the functor on the counting scalar.
struct Elementwise {
  Kernel kernel;
  int arity;
  bool predicate;         // the result is bool
  int conditions;         // so many first operands are of their own dtype, read as the compute type (where)
  bool takes[kComputes];  // compute types that it makes sense for
  Counts counts;
};

// Every op, once. An input may be a number in the launch: View::number.
const std::vector<const Elementwise*>& elementwise();
void elementwise_cost(const Launch& launch, Cost& cost);

}  // namespace pb::kernels
