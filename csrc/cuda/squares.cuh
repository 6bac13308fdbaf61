// Sums of squares in float64, as the norms of gradients and weights need them, in the order of families/order.h.
#pragma once
#include "cuda/gradients.cuh"
#include "cuda/order.cuh"
#include "math/settings.h"

namespace pb::cuda {

// Returns the sum of squares of elements [begin, end), for a warp.
template <class T> __device__ double sum_of_squares(const Gradient& gradient, int64_t begin, int64_t end) {
  Neighbours<sum_reduce, double> sums;
  for (int64_t block = begin; block < end; block += kOrderBlock) {
    double a[kShare];
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      const int64_t i = block + s * int(kWarp) + threadIdx.x % kWarp;
      a[s] = no_term<sum_reduce, double>();
      if (i < end) {
        const double x = double(normal_or_zero(acc_t<T>(*reinterpret_cast<const T*>(gradient.address(i, sizeof(T))))));
        a[s] = x * x;
      }
    }
    sums.add(fold_warp<sum_reduce>(fold_share<sum_reduce>(a)));
  }
  return sums.combined();
}
__device__ inline double sum_of_squares(const Gradient& gradient, int64_t begin, int64_t end) {
  switch (gradient.dtype) {
    case DType::f16: return sum_of_squares<float16>(gradient, begin, end);
    case DType::bf16: return sum_of_squares<bfloat16>(gradient, begin, end);
    case DType::f32: return sum_of_squares<float>(gradient, begin, end);
    default: return sum_of_squares<double>(gradient, begin, end);
  }
}

}  // namespace pb::cuda
