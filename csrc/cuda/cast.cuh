// Copies between dtypes.
#pragma once
#include "launch/shape.h"

namespace pb::cuda {

// Writes the elements of `in` into `out`, of the same shape and another dtype, with the conversions of the CPU.
void assign_cast(View out, View in);

}  // namespace pb::cuda
