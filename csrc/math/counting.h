// A scalar that counts the work done on it: run a formula on Counting, read what one element costs.
#pragma once
#include <cmath>

#include "math/number.h"
#include "math/counts.h"

namespace pb {

// + - and the unary minus are an addition each; division, roots and transcendental functions are
// one special operation each; comparisons, choices, signs and rounding are free.
struct Counting {
  double value = 0;

  Counting() = default;
  PB_HD Counting(double v) : value(v) {}
  PB_HD Counting(int v) : value(v) {}

  static inline thread_local Counts counts{};

  // For host and device, as the formulas are (nvcc warns otherwise), but only a host counts.
  PB_HD static Counting added(double v) {
#if !defined(__CUDA_ARCH__)
    ++counts.adds;
#endif
    return v;
  }
  PB_HD static Counting multiplied(double v) {
#if !defined(__CUDA_ARCH__)
    ++counts.multiplies;
#endif
    return v;
  }
  PB_HD static Counting hard(double v) {
#if !defined(__CUDA_ARCH__)
    ++counts.special;
#endif
    return v;
  }

  PB_HD friend Counting operator+(Counting a, Counting b) { return added(a.value + b.value); }
  PB_HD friend Counting operator-(Counting a, Counting b) { return added(a.value - b.value); }
  PB_HD friend Counting operator*(Counting a, Counting b) { return multiplied(a.value * b.value); }
  PB_HD friend Counting operator/(Counting a, Counting b) { return hard(a.value / b.value); }
  PB_HD friend Counting operator-(Counting a) { return added(-a.value); }
  PB_HD Counting& operator+=(Counting b) { return *this = *this + b; }
  PB_HD Counting& operator-=(Counting b) { return *this = *this - b; }
  PB_HD Counting& operator*=(Counting b) { return *this = *this * b; }
  PB_HD Counting& operator/=(Counting b) { return *this = *this / b; }

  PB_HD friend bool operator==(Counting a, Counting b) { return a.value == b.value; }
  PB_HD friend bool operator!=(Counting a, Counting b) { return a.value != b.value; }
  PB_HD friend bool operator<(Counting a, Counting b) { return a.value < b.value; }
  PB_HD friend bool operator<=(Counting a, Counting b) { return a.value <= b.value; }
  PB_HD friend bool operator>(Counting a, Counting b) { return a.value > b.value; }
  PB_HD friend bool operator>=(Counting a, Counting b) { return a.value >= b.value; }
};

// What f() does.
template <class F> Counts counts_of(F&& f) {
  Counting::counts = {};
  f();
  return Counting::counts;
}

namespace m {

// Special functions. The values do not matter, only that they are finite where the function's own are.
PB_HD Counting exp(Counting x) { return Counting::hard(std::exp(x.value)); }
PB_HD Counting if_any(Counting, Counting gradient) { return gradient; }
PB_HD Counting exp2(Counting x) { return Counting::hard(std::exp2(x.value)); }
PB_HD Counting expm1(Counting x) { return Counting::hard(std::expm1(x.value)); }
PB_HD Counting log(Counting x) { return Counting::hard(std::log(x.value)); }
PB_HD Counting log2(Counting x) { return Counting::hard(std::log2(x.value)); }
PB_HD Counting log10(Counting x) { return Counting::hard(std::log10(x.value)); }
PB_HD Counting log1p(Counting x) { return Counting::hard(std::log1p(x.value)); }
PB_HD Counting sin(Counting x) { return Counting::hard(std::sin(x.value)); }
PB_HD Counting cos(Counting x) { return Counting::hard(std::cos(x.value)); }
PB_HD Counting tan(Counting x) { return Counting::hard(std::tan(x.value)); }
PB_HD Counting asin(Counting x) { return Counting::hard(std::asin(x.value)); }
PB_HD Counting acos(Counting x) { return Counting::hard(std::acos(x.value)); }
PB_HD Counting atan(Counting x) { return Counting::hard(std::atan(x.value)); }
PB_HD Counting sinh(Counting x) { return Counting::hard(std::sinh(x.value)); }
PB_HD Counting cosh(Counting x) { return Counting::hard(std::cosh(x.value)); }
PB_HD Counting tanh(Counting x) { return Counting::hard(std::tanh(x.value)); }
PB_HD Counting asinh(Counting x) { return Counting::hard(std::asinh(x.value)); }
PB_HD Counting acosh(Counting x) { return Counting::hard(std::acosh(x.value)); }
PB_HD Counting atanh(Counting x) { return Counting::hard(std::atanh(x.value)); }
PB_HD Counting erf(Counting x) { return Counting::hard(std::erf(x.value)); }
PB_HD Counting erfc(Counting x) { return Counting::hard(std::erfc(x.value)); }
PB_HD Counting erfinv(Counting x) { return Counting::hard(x.value); }
PB_HD Counting normal_cdf(Counting x) { return Counting::hard(0.5 * std::erfc(-0.7 * x.value)); }
PB_HD Counting normal_density(Counting x) { return Counting::hard(0.4 * std::exp(-0.5 * x.value * x.value)); }
PB_HD Counting sqrt(Counting x) { return Counting::hard(std::sqrt(x.value)); }
PB_HD Counting rsqrt(Counting x) { return Counting::hard(1 / std::sqrt(x.value)); }
PB_HD Counting pow(Counting a, Counting b) { return Counting::hard(std::pow(a.value, b.value)); }
PB_HD Counting atan2(Counting a, Counting b) { return Counting::hard(std::atan2(a.value, b.value)); }
PB_HD Counting hypot(Counting a, Counting b) { return Counting::hard(std::hypot(a.value, b.value)); }
PB_HD Counting remainder(Counting a, Counting b) { return Counting::hard(std::fmod(a.value, b.value)); }
PB_HD Counting floor_divide(Counting a, Counting b) { return Counting::hard(std::floor(a.value / b.value)); }

// Free.
PB_HD Counting abs(Counting x) { return std::fabs(x.value); }
PB_HD Counting sign(Counting x) { return double((x.value > 0) - (x.value < 0)); }
PB_HD Counting floor(Counting x) { return std::floor(x.value); }
PB_HD Counting ceil(Counting x) { return std::ceil(x.value); }
PB_HD Counting trunc(Counting x) { return std::trunc(x.value); }
PB_HD Counting round(Counting x) { return std::rint(x.value); }
PB_HD Counting copysign(Counting a, Counting b) { return std::copysign(a.value, b.value); }
PB_HD Counting max(Counting a, Counting b) { return a.value > b.value ? a : b; }
PB_HD Counting min(Counting a, Counting b) { return a.value < b.value ? a : b; }
PB_HD bool isnan(Counting x) { return x.value != x.value; }
PB_HD bool isinf(Counting x) { return std::isinf(x.value); }
PB_HD bool isfinite(Counting x) { return std::isfinite(x.value); }
PB_HD bool signbit(Counting x) { return std::signbit(x.value); }
template <> PB_HD Counting lowest<Counting>() { return -INFINITY; }
template <> PB_HD Counting highest<Counting>() { return INFINITY; }

}  // namespace m
}  // namespace pb
