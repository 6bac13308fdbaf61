// Building blocks of the scalar mathematics: the host/device markers (PB_COLD for functions that a
// kernel runs rarely and contains once), bit patterns, polynomials, scaling by powers of two.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#ifdef __CUDACC__
#define PB_HD __host__ __device__ inline
#define PB_COLD __host__ __device__ __noinline__ inline
#else
#define PB_HD inline __attribute__((always_inline))
#define PB_COLD inline
#endif

namespace pb::m {

// The functions of this folder do not branch on floating-point values, and a multiplication and an addition are fused only where a
// formula calls fma (the build passes -ffp-contract=off and -fmad=false). So a vector, its tail, a GPU and every SIMD level from
// x86-64-v3 on give the same bits.

template <class To, class From> PB_HD To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof(To));
  return y;
}

// The layout of a floating-point type.
template <class T> struct Float;
template <> struct Float<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer, which is then in the low bits
  static constexpr float kTiny = 0x1p-126f, kSubnormalScale = 0x1p25f;
  static constexpr int kSubnormalShift = 25;
};
template <> struct Float<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kTiny = 0x1p-1022, kSubnormalScale = 0x1p54;
  static constexpr int kSubnormalShift = 54;
};
template <class T> using bits_t = typename Float<T>::Bits;

template <class T> constexpr bool is_real = std::is_same_v<T, float> || std::is_same_v<T, double>;
template <class T> using if_real = std::enable_if_t<is_real<T>, int>;
template <class T> using if_integer = std::enable_if_t<std::is_integral_v<T>, int>;

template <class T> constexpr bits_t<T> kSignBit = bits_t<T>(1) << (sizeof(T) * 8 - 1);
template <class T> constexpr T kInfinity = std::numeric_limits<T>::infinity();
template <class T> constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

template <class T> PB_HD bits_t<T> bits(T x) { return bit_cast<bits_t<T>>(x); }
template <class T> PB_HD T from_bits(bits_t<T> b) { return bit_cast<T>(b); }

// Returns one of two values. Both have been computed, so compilers emit a blend instead of a branch.
template <class T> PB_HD T select(bool condition, T yes, T no) { return condition ? yes : no; }

template <class T, if_real<T> = 0> PB_HD T abs(T x) { return from_bits<T>(bits(x) & ~kSignBit<T>); }
template <class T, if_real<T> = 0> PB_HD T copysign(T x, T sign) {
  return from_bits<T>((bits(x) & ~kSignBit<T>) | (bits(sign) & kSignBit<T>));
}
template <class T, if_real<T> = 0> PB_HD bool signbit(T x) { return (bits(x) & kSignBit<T>) != 0; }
template <class T, if_real<T> = 0> PB_HD bool isnan(T x) { return x != x; }
template <class T, if_real<T> = 0> PB_HD bool isinf(T x) { return abs(x) == kInfinity<T>; }
template <class T, if_real<T> = 0> PB_HD bool isfinite(T x) { return abs(x) < kInfinity<T>; }

template <class T, if_real<T> = 0> PB_HD T sqrt(T x) { return std::sqrt(x); }
template <class T, if_real<T> = 0> PB_HD T floor(T x) { return std::floor(x); }
template <class T, if_real<T> = 0> PB_HD T ceil(T x) { return std::ceil(x); }
template <class T, if_real<T> = 0> PB_HD T trunc(T x) { return std::trunc(x); }
template <class T, if_real<T> = 0> PB_HD T round(T x) { return std::rint(x); }  // ties to even, as in NumPy and IEEE 754

// Returns a b + c, rounded once. x86-64-v2 has no instruction for it and rounds twice, so the bits of that level differ from those
// of all others, and the mode "everywhere" refuses it.
#if defined(__x86_64__) && !defined(__FMA__) && !defined(PB_CUDA)
constexpr bool kHasFma = false;
#else
constexpr bool kHasFma = true;
#endif
template <class T, if_real<T> = 0> PB_HD T fma(T a, T b, T c) {
  if constexpr (kHasFma) return std::fma(a, b, c);
  else return a * b + c;
}

// Returns c0 + c1 z + c2 z^2 + ... by Horner's rule.
template <class T> PB_HD T poly(T, T c0) { return c0; }
template <class T, class... Rest> PB_HD T poly(T z, T c0, Rest... rest) { return fma(z, poly(z, T(rest)...), c0); }

// Returns 2^k for an integer-valued k for which 2^k is a normal number. k + bias is in the low bits and is shifted to the exponent.
template <class T> PB_HD T pow2(T k) {
  return from_bits<T>(bits(T(k + (Float<T>::kRound + T(Float<T>::kBias)))) << Float<T>::kMantissa);
}

// Returns x * 2^k for |k| up to twice the exponent range. It multiplies in two steps, so that neither factor overflows unless the
// product does.
template <class T> PB_HD T scale(T x, T k) {
  const T half = floor(k * T(0.5));
  return x * pow2(half) * pow2(T(k - half));
}

// Returns a word whose low bits are those of the integer k (|k| < 2^22 for float, 2^51 for double), in two's complement.
template <class T> PB_HD bits_t<T> low_bits(T k) { return bits(T(k + Float<T>::kRound)); }

// Splits a finite x > 0 into m * 2^k with m in [sqrt(1/2), sqrt(2)). It works on the bits, without a table or a branch.
template <class T> struct Split {
  T m, k;
};
template <class T> PB_HD Split<T> split_exponent(T x) {
  using B = bits_t<T>;
  constexpr B kSqrtHalf = sizeof(T) == 4 ? B(0x3f3504f3u) : B(0x3fe6a09e667f3bcdull);
  constexpr B kOne = B(Float<T>::kBias) << Float<T>::kMantissa;
  const bool small = x < Float<T>::kTiny;
  const B b = bits(select(small, T(x * Float<T>::kSubnormalScale), x)) + (kOne - kSqrtHalf);
  const T m = from_bits<T>((b & ((B(1) << Float<T>::kMantissa) - 1)) + kSqrtHalf);
  // Adding the biased exponent to the bits of kRound gives the number kRound + exponent. Subtracting kRound + bias leaves the
  // exponent as a floating-point number, without a conversion instruction.
  const T k = from_bits<T>((b >> Float<T>::kMantissa) + bits(Float<T>::kRound)) - (Float<T>::kRound + T(Float<T>::kBias));
  return {m, k - select(small, T(Float<T>::kSubnormalShift), T(0))};
}

// A double-word number: the unevaluated sum hi + lo, twice as precise as T (Dekker, "A floating-point technique...", 1971).
template <class T> struct DoubleWord {
  T hi, lo;
};
template <class T> PB_HD DoubleWord<T> quick_two_sum(T a, T b) {  // requires |a| >= |b|
  const T s = a + b;
  return {s, b - (s - a)};
}
template <class T> PB_HD DoubleWord<T> two_sum(T a, T b) {  // for any a and b (Knuth)
  const T s = a + b, t = s - a;
  return {s, (a - (s - t)) + (b - t)};
}
// Returns x with the upper half of its mantissa only: products of two such numbers are exact. Unlike Veltkamp's split, a mask
// cannot overflow.
template <class T> PB_HD T upper_half(T x) {
  constexpr bits_t<T> kMask = sizeof(T) == 4 ? bits_t<T>(0xfffff000u) : bits_t<T>(0xfffffffff8000000ull);
  return from_bits<T>(bits(x) & kMask);
}
template <class T> PB_HD DoubleWord<T> two_product(T a, T b) {
  const T p = a * b;
  if constexpr (kHasFma) return {p, fma(a, b, -p)};
  const T ah = upper_half(a), al = a - ah, bh = upper_half(b), bl = b - bh;
  return {p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
}
template <class T> PB_HD DoubleWord<T> two_product(DoubleWord<T> a, DoubleWord<T> b) {
  const DoubleWord<T> p = two_product(a.hi, b.hi);
  return quick_two_sum(p.hi, fma(a.hi, b.lo, fma(a.lo, b.hi, p.lo)));
}
// Returns c - a b, which is exact if a T can hold it, on x86-64-v2 too.
template <class T, if_real<T> = 0> PB_HD T residual(T c, T a, T b) {
  if constexpr (kHasFma) return fma(-a, b, c);
  const DoubleWord<T> p = two_product(a, b);
  return (c - p.hi) - p.lo;
}
template <class T> PB_HD DoubleWord<T> two_sum(DoubleWord<T> a, DoubleWord<T> b) {
  const DoubleWord<T> s = two_sum(a.hi, b.hi);
  return quick_two_sum(s.hi, T(s.lo + (a.lo + b.lo)));
}

}  // namespace pb::m
