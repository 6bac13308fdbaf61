// Exponentials and logarithms.
#pragma once
#include "math/bits.h"

namespace pb::m {

// ln 2 as a sum of two numbers. `hi` has few bits, so that its product with any exponent is exact (Cody & Waite, 1980).
template <class T> struct Ln2;
template <> struct Ln2<float> {
  static constexpr float hi = 0x1.63p-1f, lo = -2.12194440e-4f;
};
template <> struct Ln2<double> {
  static constexpr double hi = 0x1.62e42feep-1, lo = 1.90821492927058770002e-10;
};

// Returns e^r - 1 for |r| <= ln(2) / 2. The polynomials in this folder interpolate at Chebyshev nodes; their coefficients were
// computed with 50 digits.
PB_HD float expm1_reduced(float r) {
  return fma(r * r, poly(r, 0.5f, 0.16666576f, 0.041666552f, 0.0083633335f, 0.0013926376f), r);
}
PB_HD double expm1_reduced(double r) {
  const double second = poly(r, 0.5, 0.16666666666666669, 0.04166666666662324, 0.008333333333329994, 0.0013888888917654016,
                             0.00019841269863392214, 2.4801520613566223e-05, 2.7557267935231926e-06, 2.762041219449885e-07,
                             2.5100634461878497e-08);
  return fma(r * r, second, r);
}

// Returns n, the whole number closest to x / ln 2, and r = x - n Ln2::hi, which is exact. x is clamped to a range outside which every
// e^x is 0 or infinite, even if it is multiplied by a thousand or divided by two.
template <class T> struct Exponent {
  T n, r;
};
template <class T> PB_HD Exponent<T> split_by_ln2(T x) {
  constexpr T kMin = sizeof(T) == 4 ? T(-112) : T(-755), kMax = sizeof(T) == 4 ? T(90) : T(711);
  x = select(x < kMin, kMin, x);  // in this order NaN stays NaN
  x = select(x > kMax, kMax, x);
  const T n = round(T(x * T(1.4426950408889634)));
  return {n, fma(-n, Ln2<T>::hi, x)};
}

// Split e^x and e^(x + low), for a low that is much smaller than x, into 2^n (1 + p).
template <class T> struct ExpParts {
  T n, p;
};
template <class T> PB_HD ExpParts<T> exp_parts(T x) {
  const Exponent<T> e = split_by_ln2(x);
  return {e.n, expm1_reduced(fma(-e.n, Ln2<T>::lo, e.r))};
}
template <class T> PB_HD ExpParts<T> exp_parts(T x, T low) {
  const Exponent<T> e = split_by_ln2(x);
  return {e.n, expm1_reduced(e.r + fma(-e.n, Ln2<T>::lo, low))};
}

// Returns factor 2^n (1 + p), with one rounding fewer than the product of factor and exponential.
template <class T> PB_HD T exp_times(ExpParts<T> e, T factor) { return scale(fma(factor, e.p, factor), e.n); }

template <class T, if_real<T> = 0> PB_HD T exp(T x) {
  const ExpParts<T> e = exp_parts(x);
  return scale(T(1 + e.p), e.n);
}

template <class T, if_real<T> = 0> PB_HD T exp2(T x) {
  constexpr T kMin = sizeof(T) == 4 ? T(-151) : T(-1077), kMax = sizeof(T) == 4 ? T(129) : T(1025);
  x = select(x < kMin, kMin, x);
  x = select(x > kMax, kMax, x);
  const T n = round(x);
  return scale(T(1 + expm1_reduced(T((x - n) * T(0.6931471805599453)))), n);
}

// Computes (2^n - 1) + 2^n p at half its size, so that 2^n may be twice the largest power of two.
template <class T, if_real<T> = 0> PB_HD T expm1(T x) {
  constexpr T kMin = sizeof(T) == 4 ? T(-30) : T(-50);
  const ExpParts<T> e = exp_parts(select(x < kMin, kMin, x));
  const T s = pow2(select(e.n > Float<T>::kBias, T(Float<T>::kBias), T(e.n - 1)));
  const T y = 2 * fma(s, e.p, s - T(0.5));
  // The result is x if x^2 / 2 is less than its last place, and infinity if n is too large for s.
  constexpr T kSmall = sizeof(T) == 4 ? T(0x1p-25f) : T(0x1p-54);
  return select(abs(x) < kSmall, x, select(e.n > Float<T>::kBias + 1, kInfinity<T>, y));
}

// Returns R in log(1 + f) = 2 atanh(s) = 2 s + s R, where s = f / (2 + f) and z = s^2 <= 0.0295, as in Ng's log (fdlibm, 1993).
PB_HD float log_tail(float z) { return z * poly(z, 0.66666687f, 0.3998877f, 0.295804f); }
PB_HD double log_tail(double z) {
  return z * poly(z, 0.666666666666667, 0.3999999999989924, 0.2857142862609589, 0.2222221111514416, 0.18182890556695602,
                  0.1533167403016786, 0.1461703754879165);
}

// Returns k ln 2 + log(1 + f) + c for 1 + f in [sqrt(1/2), sqrt(2)) and a tiny c.
template <class T> PB_HD T log_sum(T f, T k, T c) {
  const T s = f / (2 + f), half = T(0.5) * f;
  const T rest = fma(s, fma(half, f, log_tail(s * s)), fma(k, Ln2<T>::lo, c));  // all terms but k Ln2::hi, f and -f^2 / 2
  return fma(k, Ln2<T>::hi, f - fma(half, f, -rest));
}

// Returns y, the logarithm of x, except at the ends of its range: it is x if x is infinity or NaN, -inf if x is 0, and NaN if x is
// negative.
template <class T> PB_HD T log_ends(T x, T y) {
  y = select(x < kInfinity<T>, y, x);
  return select(x > 0, y, select(x == 0, -kInfinity<T>, kNaN<T>));
}

template <class T, if_real<T> = 0> PB_HD T log(T x) {
  const Split<T> e = split_exponent(x);
  return log_ends(x, log_sum(T(e.m - 1), e.k, T(0)));
}

template <class T, if_real<T> = 0> PB_HD T log2(T x) {
  const Split<T> e = split_exponent(x);
  return log_ends(x, fma(log_sum(e.m - 1, T(0), T(0)), T(1.4426950408889634), e.k));
}

template <class T, if_real<T> = 0> PB_HD T log10(T x) {
  // log10(2) as a sum of two numbers, like ln 2 above.
  constexpr T kHi = sizeof(T) == 4 ? T(0x1.34p-2) : T(0x1.34413508p-2);
  constexpr T kLo = sizeof(T) == 4 ? T(0.0002487456639811952) : T(1.1451100898021838e-10);
  const Split<T> e = split_exponent(x);
  const T m = fma(log_sum(e.m - 1, T(0), T(0)), T(0.4342944819032518), e.k * kLo);
  return log_ends(x, fma(e.k, kHi, m));
}

// Computes log(u) + c, where u is 1 + x rounded and c corrects for that rounding. For x near 0, f is x itself, because u has lost
// too many bits of x.
template <class T, if_real<T> = 0> PB_HD T log1p(T x) {
  const DoubleWord<T> u = two_sum(T(1), x);
  const Split<T> e = split_exponent(u.hi);
  const bool near = e.k == 0;
  const T y = log_sum(select(near, x, T(e.m - 1)), e.k, select(near, T(0), T(u.lo / u.hi)));
  return select(x == 0, x, log_ends(u.hi, y));
}

}  // namespace pb::m
