// x^y, computed with a logarithm of nearly twice the precision of its argument.
#pragma once
#include "math/exp_log.h"

namespace pb::m {

// The series of 2 atanh(s) without its first term 2 s, divided by s^3, is 2/3 + z log_second_tail(z) for z = s^2. 2/3 is the sum of
// two numbers.
PB_HD float log_second_tail(float z) { return poly(z, 0.4f, 0.2857153f, 0.22204751f, 0.19120778f); }
PB_HD double log_second_tail(double z) {
  return poly(z, 0.4, 0.2857142857142937, 0.22222222221654733, 0.1818181833565416, 0.15384594934597917, 0.13334806212100603,
              0.11706195689881364, 0.11723603622905411);
}
template <class T> constexpr DoubleWord<T> kTwoThirds = sizeof(T) == 4
                                                            ? DoubleWord<T>{T(0x1.555556p-1), T(-0x1.555556p-27)}
                                                            : DoubleWord<T>{T(0x1.5555555555555p-1), T(0x1.5555555555555p-55)};

// Returns ln x, for x > 0 and finite, to nearly twice the precision of T. A power of 1000 multiplies its error by up to 1000.
template <class T> PB_HD DoubleWord<T> log_double_word(T x) {
  const Split<T> e = split_exponent(x);
  const T f = e.m - 1;
  const DoubleWord<T> d = two_sum(T(1), e.m);
  const T inverse = 1 / d.hi, s = f * inverse;
  const DoubleWord<T> quotient{s, fma(-s, d.lo, residual(f, s, d.hi)) * inverse};
  const DoubleWord<T> z = two_product(quotient, quotient);
  const DoubleWord<T> c = quick_two_sum(kTwoThirds<T>.hi, T(z.hi * log_second_tail(z.hi)));
  const DoubleWord<T> cube = two_product(two_product(quotient, z), DoubleWord<T>{c.hi, T(c.lo + kTwoThirds<T>.lo)});
  const DoubleWord<T> m = two_sum(DoubleWord<T>{T(2 * quotient.hi), T(2 * quotient.lo)}, cube);
  return two_sum(DoubleWord<T>{T(e.k * Ln2<T>::hi), T(e.k * Ln2<T>::lo)}, m);
}

// The special cases are those of C99, annex F.9.4.4.
template <class T, if_real<T> = 0> PB_HD T pow(T x, T y) {
  const T a = abs(x);
  const DoubleWord<T> l = log_double_word(a);
  const DoubleWord<T> e = two_product(l.hi, y);
  const T low = fma(l.lo, y, e.lo);
  const bool moderate = abs(e.hi) < T(2000);
  T r = exp_times(exp_parts(e.hi, select(moderate, low, T(0))), T(1));
  r = select(a == 1, select(isnan(y), y, T(1)), r);
  r = select(a == 0, select(y > 0, T(0), select(y < 0, kInfinity<T>, y)), r);
  r = select(a == kInfinity<T>, select(y > 0, kInfinity<T>, select(y < 0, T(0), y)), r);
  r = select(isnan(x), x, r);
  const bool whole = floor(y) == y, odd = whole & (floor(T(y * T(0.5))) * 2 != y);
  r = select(signbit(x) & odd, T(-r), r);
  r = select(!(whole | isnan(y)) & (x < 0) & (a < kInfinity<T>), kNaN<T>, r);
  return select((y == 0) | (x == 1), T(1), r);
}

}  // namespace pb::m
