// Hyperbolic functions and their inverses. Each computes one exponential or one logarithm.
#pragma once
#include "math/exp_log.h"

namespace pb::m {

// Returns tanh(x) / x - 1 for z = x^2 <= 0.36.
PB_HD float tanh_tail(float z) { return z * poly(z, -0.3333333f, 0.13332915f, -0.05387395f, 0.02111096f, -0.0062691197f); }
PB_HD double tanh_tail(double z) {
  return z * poly(z, -0.33333333333333326, 0.13333333333330197, -0.05396825396475762, 0.02186948838378093,
                  -0.008863232113541474, 0.0035920831663434575, -0.001455464802800745, 0.0005880541548418729,
                  -0.0002322510406793851, 8.154737806525365e-05, -1.833596211003942e-05);
}

template <class T, if_real<T> = 0> PB_HD T tanh(T x) {
  const T a = abs(x);
  const T small = fma(a, tanh_tail(T(a * a)), a);
  const T large = 1 - 2 / (exp(T(a + a)) + 1);
  return copysign(select(a < T(0.6), small, large), x);  // NaN takes `large`, and stays NaN
}

// Returns sinh(x) / x - 1 for z = x^2 <= 1.
PB_HD float sinh_tail(float z) { return z * poly(z, 0.16666667f, 0.008333339f, 0.00019838102f, 2.8062802e-06f); }
PB_HD double sinh_tail(double z) {
  return z * poly(z, 0.16666666666666666, 0.008333333333333333, 0.00019841269841269773, 2.755731922404034e-06,
                  2.505210836405804e-08, 1.6059048396350562e-10, 7.646625361656657e-13, 2.8445264169895285e-15);
}

template <class T, if_real<T> = 0> PB_HD T sinh(T x) {
  const T a = abs(x);
  const T half = exp_times(exp_parts(a), T(0.5));
  return select(a < 1, fma(x, sinh_tail(T(x * x)), x), copysign(T(half - T(0.25) / half), x));
}
template <class T, if_real<T> = 0> PB_HD T cosh(T x) {
  const T half = exp_times(exp_parts(abs(x)), T(0.5));
  return half + T(0.25) / half;
}

// For a from here on, a^2 + 1 rounds to a^2, and log(a + sqrt(a^2 +- 1)) to log(2 a), which is computed as log1p(a - 1) + log(2).
template <class T> constexpr T kLargeArea = sizeof(T) == 4 ? T(0x1p13) : T(0x1p28);

template <class T, if_real<T> = 0> PB_HD T asinh(T x) {
  const T a = abs(x);
  const bool large = a >= kLargeArea<T>;
  const T c = select(large, T(0), a);
  const T u = select(large, T(a - 1), T(c + c * c / (1 + sqrt(fma(c, c, T(1))))));
  return copysign(T(log1p(u) + select(large, T(0.6931471805599453), T(0))), x);
}
template <class T, if_real<T> = 0> PB_HD T acosh(T x) {
  const bool large = x >= kLargeArea<T>;
  const T d = x - 1, c = select(large, T(0), d);  // d is exact where it matters, near 1
  const T u = select(large, d, T(c + sqrt(T(c * (c + 2)))));
  const T y = log1p(u) + select(large, T(0.6931471805599453), T(0));
  return select(x < 1, kNaN<T>, y);
}
template <class T, if_real<T> = 0> PB_HD T atanh(T x) {
  const T a = abs(x);
  return copysign(T(T(0.5) * log1p(T(2 * a / (1 - a)))), x);
}

}  // namespace pb::m
