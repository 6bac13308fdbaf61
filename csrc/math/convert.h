// Conversions between element types. They give the same bits on every SIMD level and on a GPU.
#pragma once
#include "math/half.h"

namespace pb::m {

// Rounds toward zero. For a value outside int64, a GPU gives the same result as x86.
template <class C> PB_HD int64_t to_int64(C x) {
#if defined(__CUDA_ARCH__)
  if (!(x >= C(-0x1p63) && x < C(0x1p63))) return INT64_MIN;
#endif
  return int64_t(x);
}

// Converts x to T. A value outside the range of an integer type has no right result; the way through int64 makes the result the
// same on every machine.
template <class T, class C> PB_HD T narrow(C x) {
  if constexpr (std::is_same_v<T, bool>) return x != C(0);
  else if constexpr (std::is_floating_point_v<C> && std::is_same_v<T, uint64_t>)
    return x >= C(0x1p63) ? uint64_t(to_int64(C(x - C(0x1p63)))) ^ uint64_t(1) << 63 : uint64_t(to_int64(x));
  else if constexpr (std::is_floating_point_v<C> && std::is_integral_v<T>) return T(to_int64(x));
  else if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) return T(float(x));
  else return T(x);
}

// Rounds x to odd. A second rounding, to half precision, then gives the same result as a single rounding.
PB_HD float narrow_to_odd(double x) {
  const float near = float(x);
  uint32_t b = bits(near);
  b -= uint32_t(abs(double(near)) > abs(x));
  b |= uint32_t(double(near) != x);
  return from_bits<float>(b);
}

}  // namespace pb::m
