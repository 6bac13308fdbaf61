// Trigonometric functions and their inverses.
#pragma once
#include "math/number.h"

namespace pb::m {

// Splits x, |x| <= 2^43, into n pi/2 + hi + lo. pi/2 is a sum of three numbers (Cody & Waite, 1980). The subtraction of the first one
// is exact. Larger x are reduced by reduce_far.
constexpr double kLargestAngle = 0x1p43;
struct Quadrant {
  double n, hi, lo;
};
constexpr double kHalfPi1 = 0x1.921fb54442d18p+0, kHalfPi2 = 0x1.1a62633145c07p-54, kHalfPi3 = -0x1.f1976b7ed8fbcp-110;
PB_HD double quadrant_of(double n) { return fma(-4.0, floor(n * 0.25), n); }
PB_HD Quadrant reduce_half_pi(double x) {
  x = select(abs(x) <= kLargestAngle, x, kNaN<double>);
  const double n = round(x * 0.6366197723675814);
  const DoubleWord<double> p = two_product(n, kHalfPi2), r = two_sum(residual(x, n, kHalfPi1), -p.hi);
  return {quadrant_of(n), r.hi, fma(-n, kHalfPi3, r.lo - p.lo)};
}
// Float would need too many parts, so its reduction is done in double; the rest of the function is in float.
PB_HD Quadrant reduce_half_pi(float value) {
  const double x = select(abs(double(value)) <= kLargestAngle, double(value), kNaN<double>);
  const double n = round(x * 0.6366197723675814);
  return {quadrant_of(n), fma(-n, kHalfPi2, residual(x, n, kHalfPi1)), 0};
}

// Returns 64 bits of 2 / pi, which follow 64 zeros. The table has enough bits for the exponent of any double.
PB_HD uint64_t bits_of_two_over_pi(int64_t word) {
  static constexpr uint64_t kBits[21] = {// static, because otherwise each GPU thread copies the table to its stack
                                         0,
                                         0xa2f9836e4e441529,
                                         0xfc2757d1f534ddc0,
                                         0xdb6295993c439041,
                                         0xfe5163abdebbc561,
                                         0xb7246e3a424dd2e0,
                                         0x06492eea09d1921c,
                                         0xfe1deb1cb129a73e,
                                         0xe88235f52ebb4484,
                                         0xe99c7026b45f7e41,
                                         0x3991d639835339f4,
                                         0x9c845f8bbdf9283b,
                                         0x1ff897ffde05980f,
                                         0xef2f118b5a0a6d1f,
                                         0x6d367ecf27cb09b7,
                                         0x4f463f669e5fea2d,
                                         0x7527bac7ebe5f17b,
                                         0x3d0739f78a5292ea,
                                         0x6bfb5fb11f8d5d08,
                                         0x56033046fc7b6bab,
                                         0xf0cfbc209af4361d};
  return kBits[word];
}
PB_HD uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t al = uint32_t(a), ah = a >> 32, bl = uint32_t(b), bh = b >> 32;
  const uint64_t middle = ah * bl + (al * bl >> 32), other = al * bh + uint32_t(middle);
  return ah * bh + (middle >> 32) + (other >> 32);
}

// Reduces a finite x, |x| >= 2, like reduce_half_pi. It multiplies the mantissa by 192 bits of 2 / pi (Payne & Hanek, 1983): the
// bits above them only add whole turns, and the bits below them are too small to matter. The upper two bits of the product are the
// quadrant.
PB_HD Quadrant reduce_far(double x) {
  const uint64_t b = bits(abs(x)), mantissa = (b & ((uint64_t(1) << 52) - 1)) | uint64_t(1) << 52;
  const int64_t exponent = int64_t(b >> 52) - 1075, first = exponent - 2 + 64, word = first / 64;
  const int shift = int(first % 64);
  uint64_t w[4];
  for (int k = 0; k < 4; ++k) w[k] = word + k < 21 ? bits_of_two_over_pi(word + k) : 0;
  for (int k = 0; k < 3; ++k) w[k] = shift ? w[k] << shift | w[k + 1] >> (64 - shift) : w[k];
  uint64_t p0 = mantissa * w[2], p1 = mantissa * w[1], p2 = mantissa * w[0] + multiply_high(mantissa, w[1]);
  p1 += multiply_high(mantissa, w[2]);
  p2 += uint64_t(p1 < multiply_high(mantissa, w[2])) + (uint64_t(1) << 61);  // round to the nearest quadrant, not down
  const int quadrant = int(p2 >> 62);
  p2 = (p2 & ((uint64_t(1) << 62) - 1)) - (uint64_t(1) << 61);
  const bool below = int64_t(p2) < 0;
  if (below) {
    p0 = ~p0 + 1, p1 = ~p1 + uint64_t(p0 == 0);
    p2 = ~p2 + uint64_t((p1 == 0) & (p0 == 0));
  }
  DoubleWord<double> f{double(p2 >> 32) * 0x1p-30, 0};  // sums up pieces of 32 bits, which are exact in double
  const double pieces[4] = {double(uint32_t(p2)) * 0x1p-62, double(p1 >> 32) * 0x1p-94, double(uint32_t(p1)) * 0x1p-126,
                            double(p0 >> 32) * 0x1p-158};
  for (int k = 0; k < 4; ++k) {
    const DoubleWord<double> s = two_sum(f.hi, pieces[k]);
    f = quick_two_sum(s.hi, f.lo + s.lo);
  }
  const DoubleWord<double> r = two_product(f, DoubleWord<double>{0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54});
  const bool negative = signbit(x);
  const double sign = negative != below ? -1.0 : 1.0;
  return {double(negative ? (4 - quadrant) & 3 : quadrant), sign * r.hi, sign * r.lo};
}

// Return (sin(r) / r - 1) / z and (cos(r) - 1 + z / 2) / z^2 for z = r^2 <= 0.62.
PB_HD float sin_tail(float z) { return poly(z, -0.16666664f, 0.008332742f, -0.00019586606f); }
PB_HD double sin_tail(double z) {
  return poly(z, -0.16666666666666666, 0.008333333333330887, -0.0001984126983666588, 2.755731605459391e-06,
              -2.5051121875169608e-08, 1.5917412836707387e-10);
}
PB_HD float cos_tail(float z) { return poly(z, 0.041666664f, -0.0013888297f, 2.4546654e-05f); }
PB_HD double cos_tail(double z) {
  return poly(z, 0.041666666666666664, -0.0013888888888887359, 2.48015872987077e-05, -2.755731724172776e-07,
              2.0876140031390975e-09, -1.138218421447753e-11);
}

// Return the sine and the cosine of r + low for |r| <= pi/4.
template <class T> PB_HD T sin_reduced(T r, T low) {
  const T z = r * r;
  return r + fma(r * z, sin_tail(z), low * (1 - T(0.5) * z));
}
template <class T> PB_HD T cos_reduced(T r, T low) {
  const T z = r * r, half = T(0.5) * z, w = 1 - half;
  return w + (((1 - w) - half) + fma(z * z, cos_tail(z), -r * low));
}

template <class T> struct SinCos {
  T sin, cos;
};
// True if x is finite and too large for reduce_half_pi. reduce_far does not vectorize, so loops look for such x first.
template <class T, if_real<T> = 0> PB_HD bool is_far(T x) { return (abs(x) > T(kLargestAngle)) & (abs(x) < kInfinity<T>); }

template <class T> PB_HD SinCos<T> sincos_in(Quadrant reduced) {
  const T q = T(reduced.n), r = T(reduced.hi), low = T(reduced.lo);
  const T s = sin_reduced(r, low), c = cos_reduced(r, low);
  const bool odd = (q == 1) | (q == 3);
  const T sine = select(odd, c, s), cosine = select(odd, s, c);
  return {select(q >= 2, T(-sine), sine), select((q == 1) | (q == 2), T(-cosine), cosine)};
}

template <class T, if_real<T> = 0> PB_HD SinCos<T> sincos(T x) {
#if defined(PB_CUDA)  // each thread has one element, so a branch costs little
  if (is_far(x)) return sincos_in<T>(reduce_far(double(x)));
#endif
  return sincos_in<T>(reduce_half_pi(x));
}

template <class T, if_real<T> = 0> PB_HD T sin(T x) { return select(x == 0, x, sincos(x).sin); }
template <class T, if_real<T> = 0> PB_HD T cos(T x) { return sincos(x).cos; }
template <class T, if_real<T> = 0> PB_HD T tan(T x) {
  const SinCos<T> y = sincos(x);
  return select(x == 0, x, T(y.sin / y.cos));
}

// The scalar of a loop over elements some of which are far. It defines the operations that the rows of sin, cos and tan use.
template <class T> struct Far {
  T value;

  PB_HD Far(T v) : value(v) {}
  PB_HD friend Far operator*(Far a, Far b) { return a.value * b.value; }
  PB_HD friend Far operator+(Far a, Far b) { return a.value + b.value; }
  PB_HD friend Far operator-(Far a) { return -a.value; }
};
template <class T> PB_HD SinCos<T> sincos(Far<T> x) {
  return is_far(x.value) ? sincos_in<T>(reduce_far(double(x.value))) : sincos(x.value);
}
template <class T> PB_HD Far<T> sin(Far<T> x) { return is_far(x.value) ? sincos(x).sin : sin(x.value); }
template <class T> PB_HD Far<T> cos(Far<T> x) { return sincos(x).cos; }
template <class T> PB_HD Far<T> tan(Far<T> x) {
  const SinCos<T> y = sincos(x);
  return is_far(x.value) ? T(y.sin / y.cos) : tan(x.value);
}
template <class T> PB_HD Far<T> mask_nan_gradient(Far<T> g, Far<T> gradient) {
  return mask_nan_gradient(g.value, gradient.value);
}

template <class T> struct Pi;  // pi/2 as a sum of two numbers
template <> struct Pi<float> {
  static constexpr float half = 0x1.921fb6p+0f, low = -4.371139e-08f;
};
template <> struct Pi<double> {
  static constexpr double half = 0x1.921fb54442d18p+0, low = 0x1.1a62633145c07p-54;
};

// Returns (atan(t) / t - 1) / z for z = t^2 <= tan(pi/8)^2.
PB_HD float atan_tail(float z) { return poly(z, -0.3333333f, 0.19999538f, -0.14263879f, 0.10742895f, -0.06449158f); }
PB_HD double atan_tail(double z) {
  return poly(z, -0.3333333333333333, 0.19999999999995466, -0.1428571428465508, 0.11111111014334958, -0.0909090454071021,
              0.07692182322230513, -0.06664499220441451, 0.05858042767486098, -0.050848946488512896, 0.03921563261617331,
              -0.019157273875052977);
}

// Returns atan(a) for a >= 0. One division moves the argument by pi/4 or pi/2 into the range of the polynomial (Cephes, S.
// Moshier).
template <class T> PB_HD T atan_positive(T a) {
  const bool far = a > T(2.414213562373095), middle = a > T(0.41421356237309503);
  const T den = select(far, a, select(middle, T(a + 1), T(1)));
  const T num = select(far, T(-1), select(middle, T(a - 1), a));
  const T t = num / den, z = t * t;
  const T weight = select(far, T(1), select(middle, T(0.5), T(0)));
  return fma(weight, Pi<T>::half, fma(t * z, atan_tail(z), weight * Pi<T>::low) + t);
}

template <class T, if_real<T> = 0> PB_HD T atan(T x) { return copysign(atan_positive(abs(x)), x); }

template <class T, if_real<T> = 0> PB_HD T atan2(T y, T x) {
  const T ay = abs(y), ax = abs(x);
  const T quotient = select(ay == ax, T(1), T(ay / ax));  // if both are infinite, the angle is pi/4
  const T first = select(ay == 0, T(0), atan_positive(quotient));
  const T turned = select(signbit(x), T((Pi<T>::half - first) + (Pi<T>::half + 2 * Pi<T>::low)), first);
  return select(isnan(x) | isnan(y), T(x + y), copysign(turned, y));
}

// Returns (asin(s) / s - 1) / z for z = s^2 <= 1/4.
PB_HD float asin_tail(float z) { return poly(z, 0.16666673f, 0.07498855f, 0.04500138f, 0.026554542f, 0.038085025f); }
PB_HD double asin_tail(double z) {
  return poly(z, 0.1666666666666665, 0.07500000000020764, 0.044642857103423646, 0.03038194736709848, 0.02237204763174451,
              0.017355259955786323, 0.013929652902326633, 0.011875494382636922, 0.0078029494773533175, 0.01603551434914882,
              -0.010749050339697808, 0.028169218060881414);
}

// Returns asin(a) for 0 <= a <= 1/2, and asin(sqrt((1 - a) / 2)), which is half of acos(a), for larger a. Returns NaN for a > 1.
template <class T> PB_HD T asin_or_half_acos(T a, bool large) {
  const T z = select(large, T(T(0.5) * (1 - a)), T(a * a));
  const T s = select(large, sqrt(z), a);
  return fma(s * z, asin_tail(z), s);
}
template <class T, if_real<T> = 0> PB_HD T asin(T x) {
  const T a = abs(x);
  const bool large = a > T(0.5);
  const T y = asin_or_half_acos(a, large);
  return copysign(select(large, T(Pi<T>::half - fma(T(2), y, -Pi<T>::low)), y), x);
}
template <class T, if_real<T> = 0> PB_HD T acos(T x) {
  const T a = abs(x);
  const bool large = a > T(0.5);
  const T y = asin_or_half_acos(a, large);
  const T signed_y = copysign(y, x);
  const T far = select(x < 0, T(2 * (Pi<T>::half - (y - Pi<T>::low))), T(2 * y));
  return select(large, far, T(Pi<T>::half - (signed_y - Pi<T>::low)));
}

}  // namespace pb::m
