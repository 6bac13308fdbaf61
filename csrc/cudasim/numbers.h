// CUDA's functions of mathematics and bits that the C library lacks. CUDA's approximations, such as __expf, are as accurate here as
// the C library.
#pragma once

#include <math.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace cudasim {

template <class To, class From> To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Converts to a 32-bit integer: to the nearest one in range, and NaN to 0.
template <class To> To saturate(double x) {
  constexpr double kLow = std::is_signed_v<To> ? -2147483648.0 : 0.0,
                   kHigh = std::is_signed_v<To> ? 2147483647.0 : 4294967295.0;
  return std::isnan(x) ? To(0) : To(x < kLow ? kLow : x > kHigh ? kHigh : x);
}

template <class A, class B> using IfNumbers =
    std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>>;

}  // namespace cudasim

// These are macros, because the C library has internal functions with such names.
#define __expf(x) std::exp(float(x))
#define __exp10f(x) std::pow(10.0f, float(x))
#define __logf(x) std::log(float(x))
#define __log2f(x) std::log2(float(x))
#define __log10f(x) std::log10(float(x))
#define __powf(x, y) std::pow(float(x), float(y))
#define __sinf(x) std::sin(float(x))
#define __cosf(x) std::cos(float(x))
#define __tanf(x) std::tan(float(x))
#define __sincosf(x, s, c) sincosf(x, s, c)

// min() and max() of a number and NaN return the number.
template <class A, class B> cudasim::IfNumbers<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
  else return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B> cudasim::IfNumbers<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
  else return T(a) < T(b) ? T(b) : T(a);
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __frsqrt_rn(float x) { return float(1.0 / std::sqrt(double(x))); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }  // NaN gives 0

inline float __int_as_float(int x) { return cudasim::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return cudasim::bits_as<float>(x); }
inline int __float_as_int(float x) { return cudasim::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return cudasim::bits_as<unsigned>(x); }
inline double __longlong_as_double(long long x) { return cudasim::bits_as<double>(x); }
inline long long __double_as_longlong(double x) { return cudasim::bits_as<long long>(x); }
inline int __float2int_rn(float x) { return cudasim::saturate<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return cudasim::saturate<int>(std::trunc(x)); }
inline int __float2int_rd(float x) { return cudasim::saturate<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return cudasim::saturate<int>(std::ceil(x)); }
inline unsigned __float2uint_rn(float x) { return cudasim::saturate<unsigned>(std::nearbyint(x)); }
inline unsigned __float2uint_rz(float x) { return cudasim::saturate<unsigned>(std::trunc(x)); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int k = 0; k < 32; ++k) y |= ((x >> k) & 1) << (31 - k);
  return y;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  unsigned y = 0;
  for (int k = 0; k < 4; ++k) {
    const unsigned choice = selector >> (4 * k);
    unsigned byte = unsigned(bytes >> (8 * (choice & 7))) & 0xff;
    if (choice & 8) byte = byte & 0x80 ? 0xff : 0;  // replicates the sign bit
    y |= byte << (8 * k);
  }
  return y;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((uint64_t(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((Wide(a) * b) >> 64);
}
