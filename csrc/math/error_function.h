// The error function, its complement and inverse, and the normal distribution.
#pragma once
#include "math/exp_log.h"

namespace pb::m {

// Returns erf(x) / x - 1 for z = x^2 <= 1.
PB_HD float erf_tail(float z) {
  return poly(z, 0.12837917f, -0.37612626f, 0.11283594f, -0.026854211f, 0.0051890872f, -0.00080168643f, 7.875875e-05f);
}
PB_HD double erf_tail(double z) {
  return poly(z, 0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
              -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
              -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11);
}

// Returns (1 + 2 a) exp(a^2) erfc(a), which for all a >= 0 is smooth as a polynomial in q = (a - K) / (a + K)
// (Shepherd & Laframboise, Math. Comp. 36, 1981). K is chosen such that the first coefficient is almost exactly representable.
PB_HD float erfc_scaled(float q) {
  return poly(q, 1.2717445f, -0.10839691f, -0.13501656f, 0.1656812f, -0.08001116f, 0.0087961415f, 0.008542913f, -0.0021548402f,
              -0.0012444237f, 0.00026228777f, 0.0001726225f);
}
PB_HD double erfc_scaled(double q) {
  return poly(q, 1.2363539084541144, -0.1401551467732586, 0.006738807450822234, 0.07862435546318147, -0.10697124619069015,
              0.0929077443080691, -0.06081432180504461, 0.030630562683929972, -0.011296473868736445, 0.002467910637593805,
              0.00011018524017281083, -0.0003006570547744344, 8.064441023803438e-05, 1.4374883104915248e-05,
              -1.346653708423246e-05, 7.081852042123911e-07, 1.7450776875897514e-06, -3.216646922567529e-07,
              -2.2602487060413248e-07, 5.92429705822508e-08, 3.0582320728498453e-08, -6.36777143468047e-09,
              -3.2453724467961023e-09);
}
template <class T> constexpr T kErfcCentre = sizeof(T) == 4 ? T(2.21875) : T(3.8125);

// Returns factor exp(-weight x^2) for a weight that is a power of 2. The rounding error of the square, in the exponent, would cost
// up to x^2 ulp.
template <class T> PB_HD T exp_minus_square(T x, T weight, T factor) {
  const DoubleWord<T> square = two_product(x, x);
  return exp_times(exp_parts(T(-weight * square.hi), T(-weight * square.lo)), factor);
}

// Returns erfc(a) / exp(-a^2) for a >= 0.
template <class T> PB_HD T erfc_over_exp(T a) {
  constexpr T kEnd = sizeof(T) == 4 ? T(10.1) : T(27.3);
  a = select(a > kEnd, kEnd, a);  // for larger a, exp(-a^2) is 0
  return erfc_scaled(T((a - kErfcCentre<T>) / (a + kErfcCentre<T>))) / fma(T(2), a, T(1));
}

// The factor exp(-x^2) is 0 for x from here on. Larger numbers are clamped, because their square could overflow.
template <class T> constexpr T kSquareEnd = sizeof(T) == 4 ? T(16) : T(64);

template <class T, if_real<T> = 0> PB_HD T erfc(T x) {
  const T a = select(abs(x) > kSquareEnd<T>, kSquareEnd<T>, abs(x));
  const T y = exp_minus_square(a, T(1), erfc_over_exp(a));
  const T far = select(x < 0, T(2 - y), y), near = 1 - fma(x, erf_tail(T(x * x)), x);
  return select(a < T(0.4), near, far);
}

template <class T, if_real<T> = 0> PB_HD T erf(T x) {
  const T a = select(abs(x) > kSquareEnd<T>, kSquareEnd<T>, abs(x));
  const T small = fma(x, erf_tail(T(x * x)), x);
  const T large = fma(-exp(T(-a * a)), erfc_over_exp(a), T(1));
  const T y = select(a < 1, small, copysign(large, x));
  if constexpr (kHasFma) return y;
  return select(a < T(0x1p-30), T(x * T(1.1283791670955126)), y);  // the product in `small` would be flushed to zero
}

// Returns (1 + t) exp(t^2 / 2) times the normal tail beyond t >= 0, as a polynomial in q = (t - K) / (t + K). This is erfc_scaled
// in the variable of the normal distribution: with erfc, the rounding of t / sqrt(2) would cost twice as much.
PB_HD float normal_tail_scaled(float q) {
  return poly(q, 0.481473f, -0.09756716f, -0.0057000094f, 0.04139149f, -0.02796607f, 0.0066953544f, 0.0018290264f,
              -0.0012180741f, -0.00021218258f, 0.00017944413f, 5.7287598e-05f);
}
PB_HD double normal_tail_scaled(double q) {
  return poly(q, 0.45735324439083236, -0.08844174525999567, 0.036050860315845874, 0.0024400870921607145, -0.021576687236836943,
              0.024338057637727614, -0.018158225517608484, 0.010114094125750124, -0.004165690035480663, 0.0011118604518511193,
              -6.550672245356253e-05, -9.225541727542621e-05, 3.743000761740348e-05, 2.59988998875612e-07,
              -4.716982553815034e-06, 9.555233380456247e-07, 4.745739051142548e-07, -2.0343678402244897e-07,
              -4.828954174446362e-08, 3.339670427598273e-08, 6.85606955354596e-09, -3.917643433563358e-09,
              -1.1749628765656921e-09);
}
template <class T> constexpr T kTailCentre = sizeof(T) == 4 ? T(3.296875) : T(5.484375);
template <class T> constexpr T kTailEnd = sizeof(T) == 4 ? T(14.4) : T(38.8);  // from here on the tail rounds to 0

// Returns factor times the probability that a standard normal variable is below x, with full precision even if that probability is
// subnormal.
template <class T, if_real<T> = 0> PB_HD T times_normal_cdf(T factor, T x) {
  const T t = select(abs(x) > kTailEnd<T>, kTailEnd<T>, abs(x));
  const T scaled = normal_tail_scaled(T((t - kTailCentre<T>) / (t + kTailCentre<T>))) / (1 + t);
  const T tail = exp_minus_square(t, T(0.5), T(select(x > 0, T(1), factor) * scaled));
  const T u = x * T(0.7071067811865476), near = fma(T(0.5), fma(u, erf_tail(T(u * u)), u), T(0.5));
  return select(t < T(0.5), T(factor * near), select(x > 0, T(factor * (1 - tail)), tail));
}
template <class T, if_real<T> = 0> PB_HD T normal_cdf(T x) { return times_normal_cdf(T(1), x); }
// Returns the density of the standard normal distribution.
template <class T, if_real<T> = 0> PB_HD T normal_density(T x) {
  const T t = select(abs(x) > kTailEnd<T>, kTailEnd<T>, abs(x));
  return exp_minus_square(t, T(0.5), T(0.3989422804014327));
}

// Returns erfinv(x) / x as a function of w = -log(1 - x^2), and in the tails as a function of sqrt(w) (M. Giles, "Approximating the
// erfinv function", GPU Computing Gems, 2010).
PB_HD float erfinv_over_x(float w) {
  const float u = w - 2.5f, v = sqrt(w) - 3.1875f;
  const float near = poly(u, 1.5014094f, 0.24664028f, -0.004177395f, -0.0012527285f, 0.00021835104f, -4.9709565e-06f,
                          -3.46447e-06f, 4.677674e-07f, 2.337983e-08f, -8.902386e-09f);
  const float far = poly(v, 3.0210788f, 1.0045412f, 0.006139263f, -0.004445388f, 0.0030571816f, -0.002072781f, 0.001178134f,
                         -0.000360662f, -0.00011972632f, 0.000107486616f);
  return select(w < 5.0f, near, far);
}
PB_HD double erfinv_over_x(double w) {
  const double root = sqrt(w), u = w - 3.125, v = root - 3.25, t = root - 5.0625;
  const double near = poly(
      u, 1.6536545626831027, 0.24015818242558834, -0.006033670871426848, -0.0007407025341546401, 0.00018673420801979855,
      -1.388252339396564e-05, -1.3654691758535902e-06, 4.2347881683258577e-07, -2.90703912998429e-08, -4.112660444438284e-09,
      1.0512233908843483e-09, -5.414302971458207e-11, -1.2978810381738355e-11, 2.6305259701476836e-12, -8.071806441827048e-14,
      -4.001987566065289e-14, 6.521143487071953e-15, -3.9420156999478236e-17, -1.2213641747459284e-16, 1.551213527655298e-17,
      6.06176529776359e-19, -3.4740459285281343e-19, 2.004340110779127e-20, 3.195049850388346e-21, -3.601699715281941e-22);
  const double far = poly(v, 3.0838856104922208, 1.0052589676941652, 0.005370914553571847, -0.0037512085082136346,
                          0.0024914420969730493, -0.0016882755357985374, 0.0009532893639167035, -0.00035503780877284535,
                          2.403125530318937e-05, 6.828707844741785e-05, -4.731897466795385e-05, 1.2465206062501779e-05,
                          2.925698688611483e-06, -3.986196946093392e-06, 1.4987701895753915e-06, -2.6811315423539412e-08,
                          -2.7140255268604094e-07, 1.308632072477876e-07, 7.209144611579445e-10, -1.5031911619229058e-08);
  const double farthest = poly(t, 4.913049587233785, 1.0102806778035613, -0.0001773033612941909, -0.00019677853807963165,
                               7.010167455058296e-05, -1.8062951479969433e-05, 4.115357333725993e-06, -8.872288250766908e-07,
                               1.955869760934303e-07, -5.2295687333581536e-08, 2.034517492246868e-08, -1.0372394404843242e-08,
                               5.38319994711747e-09, -2.4492201378290514e-09, 9.865046404857087e-10, -3.733472013989759e-10,
                               7.85183290946847e-11, 2.602319569495919e-11, -1.4438857534652278e-11);
  return select(w < 6.25, near, select(w < 16.0, far, farthest));
}

template <class T, if_real<T> = 0> PB_HD T erfinv(T x) {
  const T a = abs(x);
  const T y = x * erfinv_over_x(T(-log(T((1 - a) * (1 + a)))));
  return select(a == 1, copysign(kInfinity<T>, x), y);
}

}  // namespace pb::m
