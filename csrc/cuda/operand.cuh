// Operands as kernels read them: the addresses of elements, and their values in the compute type.
#pragma once
#include <cstring>

#include "cuda/launch.cuh"
#include "launch/shape.h"

namespace pb::cuda {

// ---- elements of any dtype

// Returns the element at p, whose dtype must have the compute type C. All threads pass the same dtype, so no warp diverges.
template <class C> __device__ inline C load_as(DType dtype, const char* p) {
  if constexpr (std::is_same_v<C, float>) {
    if (dtype == DType::f32) return *reinterpret_cast<const float*>(p);
    if (dtype == DType::f16) return float(*reinterpret_cast<const float16*>(p));
    return float(*reinterpret_cast<const bfloat16*>(p));
  } else if constexpr (std::is_same_v<C, int64_t>) {
    switch (dtype) {
      case DType::i8: return *reinterpret_cast<const int8_t*>(p);
      case DType::i16: return *reinterpret_cast<const int16_t*>(p);
      case DType::i32: return *reinterpret_cast<const int32_t*>(p);
      case DType::u8: return *reinterpret_cast<const uint8_t*>(p);
      case DType::u16: return *reinterpret_cast<const uint16_t*>(p);
      case DType::u32: return *reinterpret_cast<const uint32_t*>(p);
      default: return *reinterpret_cast<const int64_t*>(p);
    }
  } else {
    return *reinterpret_cast<const C*>(p);
  }
}

// Writes x as an element of a dtype whose compute type is C. Half precision rounds once; integers wrap.
template <class C> __device__ inline void store_as(DType dtype, char* p, C x) {
  if constexpr (std::is_same_v<C, float>) {
    if (dtype == DType::f32) *reinterpret_cast<float*>(p) = x;
    else if (dtype == DType::f16) *reinterpret_cast<float16*>(p) = float16(x);
    else *reinterpret_cast<bfloat16*>(p) = bfloat16(x);
  } else if constexpr (std::is_same_v<C, int64_t>) {
    switch (dtype) {
      case DType::i8:
      case DType::u8: *reinterpret_cast<uint8_t*>(p) = uint8_t(x); break;
      case DType::i16:
      case DType::u16: *reinterpret_cast<uint16_t*>(p) = uint16_t(x); break;
      case DType::i32:
      case DType::u32: *reinterpret_cast<uint32_t*>(p) = uint32_t(x); break;
      default: *reinterpret_cast<int64_t*>(p) = x;
    }
  } else {
    *reinterpret_cast<C*>(p) = x;
  }
}

// Returns the element at p as C, whatever its dtype. Floats become integers as in C++; everything but zero becomes true.
template <class C> __device__ inline C convert_from(DType dtype, const char* p) {
  switch (dtype) {
    case DType::f16: return C(float(*reinterpret_cast<const float16*>(p)));
    case DType::bf16: return C(float(*reinterpret_cast<const bfloat16*>(p)));
    case DType::f32: return C(*reinterpret_cast<const float*>(p));
    case DType::f64: return C(*reinterpret_cast<const double*>(p));
    case DType::u64: return C(*reinterpret_cast<const uint64_t*>(p));
    case DType::b8: return C(*reinterpret_cast<const uint8_t*>(p) != 0);
    default: return C(load_as<int64_t>(dtype, p));
  }
}

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
#pragma unroll
    for (int step = 0; step < kMaxDims; ++step) {
      const int d = ndim - 1 - step;
      if (d < 0) break;
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

// ---- packs: four neighbouring elements, loaded or stored at once

template <class T> struct __align__(4 * sizeof(T)) Pack {
  T v[4];
};

inline bool packable(const View& v) {
  return v.contiguous() && reinterpret_cast<uintptr_t>(v.data) % (4 * item_size(v.dtype)) == 0;
}

// Loads four elements from element i on, which must be a multiple of four. The dtype must have the compute type float.
__device__ inline void load_four(DType dtype, const char* data, int64_t i, float (&x)[4]) {
  if (dtype == DType::f32) {
    const auto pack = reinterpret_cast<const Pack<float>*>(data)[i / 4];
    for (int k = 0; k < 4; ++k) x[k] = pack.v[k];
  } else {
    const auto pack = reinterpret_cast<const Pack<uint16_t>*>(data)[i / 4];
    for (int k = 0; k < 4; ++k)
      x[k] = dtype == DType::f16 ? float(float16::from_bits(pack.v[k])) : float(bfloat16::from_bits(pack.v[k]));
  }
}
__device__ inline void store_four(DType dtype, char* data, int64_t i, const float (&x)[4]) {
  if (dtype == DType::f32) {
    Pack<float> pack;
    for (int k = 0; k < 4; ++k) pack.v[k] = x[k];
    reinterpret_cast<Pack<float>*>(data)[i / 4] = pack;
  } else {
    Pack<uint16_t> pack;
    for (int k = 0; k < 4; ++k) pack.v[k] = dtype == DType::f16 ? float16(x[k]).bits : bfloat16(x[k]).bits;
    reinterpret_cast<Pack<uint16_t>*>(data)[i / 4] = pack;
  }
}
__device__ inline void store_four(DType, char* data, int64_t i, const bool (&x)[4]) {
  Pack<uint8_t> pack;
  for (int k = 0; k < 4; ++k) pack.v[k] = x[k];
  reinterpret_cast<Pack<uint8_t>*>(data)[i / 4] = pack;
}

}  // namespace pb::cuda
