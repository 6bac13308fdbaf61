// Sums of squares, for all kernels that need a norm.
#include "cpu/squares.h"

#include "cpu/reduce.h"
#include "math/settings.h"

namespace pb::cpu {

template <class C> double sum_of_squares(int64_t n, const void* of) {
  const C* x = static_cast<const C*>(of);
  return reduce_row<sum_reduce, double>(n, [x](int64_t k) {
    const double g = double(normal_or_zero(x[k]));
    return g * g;
  });
}
template double sum_of_squares<float>(int64_t, const void*);
template double sum_of_squares<double>(int64_t, const void*);

double sum_of_squares(Compute compute, int64_t n, const void* of) {
  return compute == Compute::f32 ? sum_of_squares<float>(n, of) : sum_of_squares<double>(n, of);
}

}  // namespace pb::cpu
