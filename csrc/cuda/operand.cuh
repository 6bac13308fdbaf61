// Operands as kernels read them: the addresses of elements. element.cuh reads them.
#pragma once
#include <cstring>

#include "cuda/element.cuh"
#include "families/matmul.h"

namespace pb::cuda {

// ---- positions

// Divides numbers below 2^31 by a fixed divisor, with a multiplication and a shift (Granlund & Montgomery 1994).
struct Divider {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divider() = default;
  explicit Divider(uint32_t d) : divisor(d) {
    while (shift < 31 && (uint32_t{1} << shift) < d) ++shift;
    multiplier = uint32_t(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }
  __host__ __device__ uint32_t divide(uint32_t n) const {
#if defined(__CUDA_ARCH__)
    return (__umulhi(n, multiplier) + n) >> shift;
#else
    return uint32_t(((uint64_t(n) * multiplier >> 32) + n) >> shift);
#endif
  }
};

// The common shape of kCount operands, and the strides of each operand in bytes. Walks have at most kMaxWalk elements.
template <int kCount> struct Walk {
  int ndim = 0;
  Divider length[kMaxDims];
  int64_t stride[kCount][kMaxDims];

  Walk() = default;
  // views: must be collapsed and have the same shape.
  explicit Walk(const View* views) : ndim(views[0].ndim) {
    for (int d = 0; d < ndim; ++d) {
      length[d] = Divider(uint32_t(views[0].shape[d]));
      for (int k = 0; k < kCount; ++k) stride[k][d] = views[k].stride[d];
    }
  }
  // Computes the byte offset of element i in each operand.
  __device__ void offsets(uint32_t i, int64_t (&offset)[kCount]) const {
    for (int k = 0; k < kCount; ++k) offset[k] = 0;
#pragma unroll 1
    for (int d = ndim - 1; d >= 0; --d) {
      uint32_t rest = i;
      if (d > 0) {
        i = length[d].divide(rest);
        rest -= i * length[d].divisor;
      }
      for (int k = 0; k < kCount; ++k) offset[k] += int64_t(rest) * stride[k][d];
    }
  }
};

constexpr int64_t kMaxWalk = (int64_t{1} << 31) - 1;

// Calls f(views) for parts of collapsed views with at most kMaxWalk elements each. Nearly always there is a single part, the views
// themselves. There is no part if the views have no elements. A long axis is cut at a multiple of eight, so that no chain of rows is
// (families/order.h).
template <class F> void each_part(View* views, int count, F&& f) {
  if (views[0].size() == 0) return;
  if (views[0].size() <= kMaxWalk) return f(views);
  int axis = 0;  // the first axis longer than one
  while (views[0].shape[axis] == 1) ++axis;
  const int64_t length = views[0].shape[axis], half = length > 16 ? length / 16 * 8 : length / 2;
  for (int part = 0; part < 2; ++part) {
    View some[kMaxDims];
    for (int k = 0; k < count; ++k) {
      some[k] = views[k];
      some[k].shape[axis] = part ? length - half : half;
      if (part && !some[k].number) some[k].data += half * some[k].stride[axis];
    }
    each_part(some, count, f);
  }
}

// ---- some axes of an operand

// Returns axes [begin, end) of an operand, collapsed.
inline View axes_of(const View& x, int begin, int end) {
  View v = x;
  v.ndim = 0;
  for (int d = begin; d < end; ++d) v.shape[v.ndim] = x.shape[d], v.stride[v.ndim++] = x.stride[d];
  collapse(&v, 1);
  return v;
}

// Byte offsets along some axes of an operand. They are computed once per cell or column, so plain divisions are fast enough.
struct Axes {
  int ndim;
  int64_t length[kMaxDims], stride[kMaxDims];  // bytes

  explicit Axes(const View& v) : ndim(v.ndim) {
    for (int d = 0; d < kMaxDims; ++d) length[d] = d < ndim ? v.shape[d] : 1, stride[d] = d < ndim ? v.stride[d] : 0;
  }
  __device__ int64_t offset(int64_t i) const {
    int64_t at = 0;
#pragma unroll 1
    for (int d = ndim - 1; d > 0; --d) {
      const int64_t next = i <= kMaxWalk ? int64_t(uint32_t(i) / uint32_t(length[d])) : i / length[d];
      at += (i - next * length[d]) * stride[d];
      i = next;
    }
    return at + i * stride[0];
  }
};

// Calls f(Tag<T>{}) with the type in which a float dtype is stored.
template <class F> void visit_stored_float(DType dtype, const F& f) {
  visit(dtype, [&](auto tag) {
    if constexpr (!std::is_integral_v<typename decltype(tag)::type>) f(tag);
  });
}

// ---- factors of products

// Rounds a float32 factor to the precision of a thread's products.
__device__ __forceinline__ float round_to(kernels::Precision precision, float x) {
  if (precision == kernels::Precision::bf16) return float(bfloat16(x));
  if (precision == kernels::Precision::f16) return float(float16(x));
  return x;
}

}  // namespace pb::cuda
