// Sums of squares in float64, as the norms of gradients and weights need them, in the order of families/order.h.
#pragma once
#include "cuda/gradients.cuh"
#include "cuda/order.cuh"
#include "math/settings.h"

namespace pb::cuda {

// Returns the sum of the squares of read(begin), ..., read(end - 1), for a warp.
template <class Read> __device__ inline double sum_of_squares_of(int64_t begin, int64_t end, const Read& read) {
  return sum_in_order(begin, end, [&](int64_t i) {
    const double x = double(normal_or_zero(read(i)));
    return x * x;
  });
}
// Returns the sum of squares of elements [begin, end), for a warp.
__device__ inline double sum_of_squares(const Gradient& gradient, int64_t begin, int64_t end) {
  if (gradient.flat && gradient.dtype == DType::f32) {
    const float* const x = reinterpret_cast<const float*>(gradient.data);
    return sum_of_squares_of(begin, end, [x](int64_t i) { return x[i]; });
  }
  if (gradient.dtype == DType::f64) return sum_of_squares_of(begin, end, [&](int64_t i) { return gradient.at<double>(i); });
  return sum_of_squares_of(begin, end, [&](int64_t i) { return gradient.at<float>(i); });
}

}  // namespace pb::cuda
