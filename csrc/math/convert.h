// Conversions between element types, the same on every SIMD level and on a GPU.
#pragma once
#include "math/half.h"

namespace pb::m {

// Toward zero. Outside int64 there is no right answer; a GPU gives that of x86.
template <class C> PB_HD int64_t to_int64(C x) {
#if defined(__CUDA_ARCH__)
  if (!(x >= C(-0x1p63) && x < C(0x1p63))) return INT64_MIN;
#endif
  return int64_t(x);
}

// A value outside an integer's range has no right answer; going through int64 gives everywhere the same wrong one.
template <class T, class C> PB_HD T narrow(C x) {
  if constexpr (std::is_same_v<T, bool>) return x != C(0);
  else if constexpr (std::is_floating_point_v<C> && std::is_same_v<T, uint64_t>)
    return x >= C(0x1p63) ? uint64_t(to_int64(C(x - C(0x1p63)))) ^ uint64_t(1) << 63 : uint64_t(to_int64(x));
  else if constexpr (std::is_floating_point_v<C> && std::is_integral_v<T>) return T(to_int64(x));
  else if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) return T(float(x));
  else return T(x);
}

// With rounding to odd: a second rounding, to half precision, then gives what one rounding would.
PB_HD float narrow_to_odd(double x) {
  const float near = float(x);
  uint32_t b = bits(near);
  b -= uint32_t(abs(double(near)) > abs(x));
  b |= uint32_t(double(near) != x);
  return from_bits<float>(b);
}

}  // namespace pb::m
