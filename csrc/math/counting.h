// A scalar that counts the work done on it: run a formula on Counting, read what one element costs.
#pragma once
#include <cmath>

#include "math/number.h"

namespace pb {

// + - * and the unary minus are one flop each, a fused multiply-add two; division, roots and transcendental functions are
// one special operation each; comparisons, choices, signs and rounding are free.
struct Counting {
  double value = 0;

  Counting() = default;
  PB_HD Counting(double v) : value(v) {}
  PB_HD Counting(int v) : value(v) {}

  static inline thread_local long long flops = 0, special = 0;
  static void reset() { flops = special = 0; }

  static Counting flop(double v) { return ++flops, Counting(v); }
  static Counting hard(double v) { return ++special, Counting(v); }

  friend Counting operator+(Counting a, Counting b) { return flop(a.value + b.value); }
  friend Counting operator-(Counting a, Counting b) { return flop(a.value - b.value); }
  friend Counting operator*(Counting a, Counting b) { return flop(a.value * b.value); }
  friend Counting operator/(Counting a, Counting b) { return hard(a.value / b.value); }
  friend Counting operator-(Counting a) { return flop(-a.value); }
  Counting& operator+=(Counting b) { return *this = *this + b; }
  Counting& operator-=(Counting b) { return *this = *this - b; }
  Counting& operator*=(Counting b) { return *this = *this * b; }
  Counting& operator/=(Counting b) { return *this = *this / b; }

  friend bool operator==(Counting a, Counting b) { return a.value == b.value; }
  friend bool operator!=(Counting a, Counting b) { return a.value != b.value; }
  friend bool operator<(Counting a, Counting b) { return a.value < b.value; }
  friend bool operator<=(Counting a, Counting b) { return a.value <= b.value; }
  friend bool operator>(Counting a, Counting b) { return a.value > b.value; }
  friend bool operator>=(Counting a, Counting b) { return a.value >= b.value; }
};

namespace m {

// Special functions. The values do not matter, only that they are finite where the function's own are.
inline Counting exp(Counting x) { return Counting::hard(std::exp(x.value)); }
inline Counting if_any(Counting, Counting gradient) { return gradient; }
inline Counting exp2(Counting x) { return Counting::hard(std::exp2(x.value)); }
inline Counting expm1(Counting x) { return Counting::hard(std::expm1(x.value)); }
inline Counting log(Counting x) { return Counting::hard(std::log(x.value)); }
inline Counting log2(Counting x) { return Counting::hard(std::log2(x.value)); }
inline Counting log10(Counting x) { return Counting::hard(std::log10(x.value)); }
inline Counting log1p(Counting x) { return Counting::hard(std::log1p(x.value)); }
inline Counting sin(Counting x) { return Counting::hard(std::sin(x.value)); }
inline Counting cos(Counting x) { return Counting::hard(std::cos(x.value)); }
inline Counting tan(Counting x) { return Counting::hard(std::tan(x.value)); }
inline Counting asin(Counting x) { return Counting::hard(std::asin(x.value)); }
inline Counting acos(Counting x) { return Counting::hard(std::acos(x.value)); }
inline Counting atan(Counting x) { return Counting::hard(std::atan(x.value)); }
inline Counting sinh(Counting x) { return Counting::hard(std::sinh(x.value)); }
inline Counting cosh(Counting x) { return Counting::hard(std::cosh(x.value)); }
inline Counting tanh(Counting x) { return Counting::hard(std::tanh(x.value)); }
inline Counting asinh(Counting x) { return Counting::hard(std::asinh(x.value)); }
inline Counting acosh(Counting x) { return Counting::hard(std::acosh(x.value)); }
inline Counting atanh(Counting x) { return Counting::hard(std::atanh(x.value)); }
inline Counting erf(Counting x) { return Counting::hard(std::erf(x.value)); }
inline Counting erfc(Counting x) { return Counting::hard(std::erfc(x.value)); }
inline Counting erfinv(Counting x) { return Counting::hard(x.value); }
inline Counting normal_cdf(Counting x) { return Counting::hard(0.5 * std::erfc(-0.7 * x.value)); }
inline Counting normal_density(Counting x) { return Counting::hard(0.4 * std::exp(-0.5 * x.value * x.value)); }
inline Counting sqrt(Counting x) { return Counting::hard(std::sqrt(x.value)); }
inline Counting rsqrt(Counting x) { return Counting::hard(1 / std::sqrt(x.value)); }
inline Counting pow(Counting a, Counting b) { return Counting::hard(std::pow(a.value, b.value)); }
inline Counting atan2(Counting a, Counting b) { return Counting::hard(std::atan2(a.value, b.value)); }
inline Counting hypot(Counting a, Counting b) { return Counting::hard(std::hypot(a.value, b.value)); }
inline Counting remainder(Counting a, Counting b) { return Counting::hard(std::fmod(a.value, b.value)); }
inline Counting floor_divide(Counting a, Counting b) { return Counting::hard(std::floor(a.value / b.value)); }

// Free.
inline Counting abs(Counting x) { return std::fabs(x.value); }
inline Counting sign(Counting x) { return double((x.value > 0) - (x.value < 0)); }
inline Counting floor(Counting x) { return std::floor(x.value); }
inline Counting ceil(Counting x) { return std::ceil(x.value); }
inline Counting trunc(Counting x) { return std::trunc(x.value); }
inline Counting round(Counting x) { return std::rint(x.value); }
inline Counting copysign(Counting a, Counting b) { return std::copysign(a.value, b.value); }
inline Counting max(Counting a, Counting b) { return a.value > b.value ? a : b; }
inline Counting min(Counting a, Counting b) { return a.value < b.value ? a : b; }
inline bool isnan(Counting x) { return x.value != x.value; }
inline bool isinf(Counting x) { return std::isinf(x.value); }
inline bool isfinite(Counting x) { return std::isfinite(x.value); }
inline bool signbit(Counting x) { return std::signbit(x.value); }
template <> inline Counting lowest<Counting>() { return -INFINITY; }
template <> inline Counting highest<Counting>() { return INFINITY; }

}  // namespace m
}  // namespace pb
