// Sums of squares in float64, as the norms of gradients and weights need them.
#pragma once
#include "launch/dtype.h"

namespace pb::cpu {

// Return the sum of squares of n elements of the compute type, in the order of families/order.h. C is float or double.
template <class C> double sum_of_squares(int64_t n, const void* of);
double sum_of_squares(Compute compute, int64_t n, const void* of);

}  // namespace pb::cpu
