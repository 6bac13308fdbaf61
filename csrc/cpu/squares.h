// Sums of squares in float64, as the norms of gradients and weights need them.
#pragma once
#include "cpu/reduce.h"
#include "math/settings.h"

namespace pb::cpu {

// Returns the sum of squares of n elements of the compute type C, in the order of families/order.h.
template <class C> double sum_of_squares(int64_t n, const void* of) {
  const C* x = static_cast<const C*>(of);
  return reduce_row<sum_reduce, double>(n, [x](int64_t k) {
    const double g = double(normal_or_zero(x[k]));
    return g * g;
  });
}
inline double sum_of_squares(Compute compute, int64_t n, const void* of) {
  return compute == Compute::f32 ? sum_of_squares<float>(n, of) : sum_of_squares<double>(n, of);
}

}  // namespace pb::cpu
