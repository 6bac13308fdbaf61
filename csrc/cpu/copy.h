// Moving elements, for the kernels of every family.
#pragma once
#include "families/copy.h"
#include "launch/check.h"

namespace pb::cpu {

// Writes the elements of `in` into `out`, of the same shape, in parallel where it pays. Any strides of both; where the
// dtypes differ, `out` is contiguous. They do not overlap.
void assign(View out, View in);
// Writes `number`, the bits of one element, to every element of `out`.
void assign_number(View out, uint64_t number);

}  // namespace pb::cpu
