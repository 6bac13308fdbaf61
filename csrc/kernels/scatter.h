// Writing at indices along an axis. Every target takes its updates in the order of the indices.
#pragma once
#include <vector>

#include "kernels/index.h"

namespace pb::kernels {

enum class Identity { zero, lowest, highest };  // what is there before the updates, if it is not an operand

// How an op is called: onto an array, into zeros at shared indices or at an index for each element, by segments.
enum class Scattering { onto, into, along, segments };

// What the bindings know of an op. The work of one update was measured by running the functor on the counting scalar.
struct Scatter {
  Kernel kernel;
  Scattering how;
  Identity identity;
  Negative negative;
  Counts counts;
};

// Every op, once.
const std::vector<const Scatter*>& scatters();
void scatter_cost(const Launch& launch, Cost& cost);

// The number before any update to elements of `dtype`, as an element of `stored`.
uint64_t identity_of(Identity identity, DType dtype, DType stored);

// What a backend brings, beside scatters().
// out: x with the updates combined in along axis ints[0]. in: x, indices, updates.
void index_write(const Launch& launch);
// The same into the identity. in: indices, updates.
void scatter_write(const Launch& launch);
// updates and indices have one shape: each element has an index of its own along the axis. in: indices, updates.
void along_axis_add(const Launch& launch);

}  // namespace pb::kernels
