// Copies and fills, for the kernels of every family.
#pragma once
#include "families/copy.h"
#include "launch/check.h"

namespace pb::cpu {

// Copies the elements of `in` to `out`, which has the same shape, in parallel if that pays. Both may have any strides, but `out`
// must be contiguous if the dtypes differ. They must not overlap.
void assign(View out, View in);
// Writes `number`, the bits of one element, to every element of `out`.
void assign_number(View out, uint64_t number);

}  // namespace pb::cpu
