// CUDA's functions of numbers and their bits that the C library lacks.
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

template <class A, class B> using IfNumbers =
    std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>>;

}  // namespace cudasim

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

inline float __uint_as_float(unsigned x) { return cudasim::bits_as<float>(x); }
inline unsigned __float_as_uint(float x) { return cudasim::bits_as<unsigned>(x); }
inline double __longlong_as_double(long long x) { return cudasim::bits_as<double>(x); }
inline long long __double_as_longlong(double x) { return cudasim::bits_as<long long>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
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
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((Wide(a) * b) >> 64);
}
