// Copies between dtypes.
#pragma once
#include "launch/shape.h"

namespace pb::cuda {

// Writes the elements of `in` to `out`, which has the same shape and a different dtype. Values are converted as on the CPU.
void assign_cast(View out, View in);

}  // namespace pb::cuda
