// The logarithm of the gamma function, and its first two derivatives: lgamma, digamma and trigamma.
#pragma once
#include "math/exp_log.h"
#include "math/trig.h"

namespace pb::m {

// Each function is computed in one of two ways. Near the zeros of lgamma, for z = 1 + t in [0.75, 2.5], it is a polynomial in
// q = (t - 0.3125) / (t + 2), which moves the poles at t = -1, -2, ... away. For z > 2.5 it is Stirling's series in u = 1 / z, as a
// polynomial that was fitted to that range. Smaller positive z are shifted up by one. Negative ones are reflected.
template <class T> constexpr T kFar = T(2.5);
// Returns u if z is far, otherwise q. Requires t = z - 1 to be exact where z is not far.
template <class T> PB_HD T q_or_u(bool far, T z, T t) { return select(far, T(1), T(t - T(0.3125))) / select(far, z, T(t + 2)); }

// Returns lgamma(1 + t) / (t (t - 1)).
PB_HD float lgamma_near(float q) {
  return poly(q, 0.5129377f, -0.40090322f, 0.05261145f, -0.08879363f, 0.017231084f, -0.03453195f, 0.0055407677f, -0.018829241f,
              -1.12330035e-05f);
}
PB_HD double lgamma_near(double q) {
  return poly(q, 0.5129377501958122, -0.4009032623135468, 0.05261127809786397, -0.08878756794608247, 0.01724098892408301,
              -0.03473002379744948, 0.00536224532921359, -0.01646712769595638, 0.001030478728685794, -0.00879481258080435,
              -0.0005614460955757005, -0.005156331209845446, -0.0010826248347050476, -0.0032700706034056904,
              -0.0012039853136606542, -0.002285739203798126, -0.0009595426999234977, -0.0012920033364603467,
              -0.001636784044515734, -0.002225792495786064);
}
// Returns digamma(1 + t) / (t - kDigammaZero).
PB_HD float digamma_near(float q) {
  return poly(q, 1.0400547f, -1.2312592f, 0.63534766f, -0.5679169f, 0.38510162f, -0.3236178f, 0.22352862f, -0.18704113f,
              0.15317984f, -0.12059424f);
}
PB_HD double digamma_near(double q) {
  return poly(q, 1.0400546189605522, -1.231259233984277, 0.6353487577687807, -0.5679149240425102, 0.38501897050558265,
              -0.32366062644412485, 0.2256658920017486, -0.18727259201718444, 0.13095345509838724, -0.10904114675781242,
              0.07557121304102818, -0.06378505493874455, 0.04337421957474883, -0.03750104470010657, 0.024809408378621924,
              -0.022210301339135565, 0.013364256016938088, -0.012862416402027685, 0.010344397888224778, -0.010409216117810507);
}
// The zero of digamma is 1 + kDigammaZero.
template <class T> constexpr DoubleWord<T> kDigammaZero =
    sizeof(T) == 4 ? DoubleWord<T>{T(0x1.d8b618p-2), T(0x1.ab5f2p-27)}
                   : DoubleWord<T>{T(0x1.d8b618d5af8fep-2), T(-0x1.1e563779a1f5bp-56)};
// Returns (t + 2) trigamma(1 + t).
PB_HD float trigamma_near(float q) {
  return poly(q, 2.5887465f, -3.6625702f, 4.409155f, -4.7098274f, 4.6366673f, -4.333046f, 3.9045427f, -3.3729992f, 2.966659f,
              -3.1267025f, 2.4271166f);
}
PB_HD double trigamma_near(double q) {
  return poly(q, 2.5887466369224548, -3.662569827505265, 4.409156293222664, -4.709887649343014, 4.636577751739035,
              -4.329920002466569, 3.9060606393062316, -3.4387528692539027, 2.9725134456939872, -2.5333442978419516,
              2.134802982741458, -1.7824465194006514, 1.4767931979044213, -1.2152772296384313, 0.9955582439347161,
              -0.8159573755763381, 0.65614414799342, -0.49391914576139306, 0.42462923598382996, -0.49361562911850243,
              0.34340287153233534);
}

// Return the rests of Stirling's series for z > 2.5, as functions of w = u^2 for u = 1 / z:
//   lgamma(z) = (z - 1/2) (log(z) - 1) + (log(2 pi) - 1) / 2 + u lgamma_far(w)
//   digamma(z) = log(z) - u / 2 - w digamma_far(w)
//   trigamma(z) = u (1 + u / 2 + w trigamma_far(w))
PB_HD float lgamma_far(float w) { return poly(w, 0.08333333f, -0.0027772828f, 0.00077741203f, -0.00041150514f); }
PB_HD double lgamma_far(double w) {
  return poly(w, 0.08333333333333331, -0.0027777777777425704, 0.0007936507810740789, -0.0005952362987525512,
              0.0008416146468954755, -0.0019112061273278312, 0.00621416883593992, -0.025211948545317147, 0.10689474701340294,
              -0.39730201679484567, 1.1113197941746704, -1.9839544447221413, 1.6579126428005446);
}
PB_HD float digamma_far(float w) { return poly(w, 0.08333333f, -0.00833288f, 0.0039444584f, -0.0037026987f, 0.003338899f); }
PB_HD double digamma_far(double w) {
  return poly(w, 0.08333333333333327, -0.008333333333172483, 0.003968253901552892, -0.0041666555790601705, 0.00757477549863857,
              -0.02103925711040969, 0.08136951730856672, -0.39153496701913143, 2.016786241801458, -9.536094055886467,
              36.41520181835897, -100.25803909760218, 172.67957008683638, -138.07538488499677);
}
PB_HD float trigamma_far(float w) { return poly(w, 0.16666666f, -0.033328634f, 0.023561183f, -0.028410438f, 0.029116334f); }
PB_HD double trigamma_far(double w) {
  return poly(w, 0.16666666666666635, -0.033333333332468, 0.02380952339731129, -0.03333325446862926, 0.075749511055586,
              -0.25260384557000176, 1.1448832728174505, -6.420249631043667, 39.138500933391576, -226.0989233495173,
              1104.4575838660814, -4164.708111565198, 11076.670523876397, -18255.343822599963, 13923.012199797848);
}

// Returns |sin(pi x)| and |cos(pi x)|, both with full relative precision, and r = x - n for n, the whole number closest to x.
template <class T> struct HalfTurn {
  T sin, cos, r;
};
template <class T> PB_HD HalfTurn<T> half_turn(T x) {
  constexpr T kPi = T(3.141592653589793), kPiLow = sizeof(T) == 4 ? T(-8.742278e-08) : T(1.2246467991473532e-16);
  const T r = x - round(x), a = abs(r);
  const bool small = a <= T(0.25);
  const T w = select(small, a, T(T(0.5) - a)), angle = w * kPi, low = fma(w, kPiLow, residual(T(-angle), T(-w), kPi));
  const T s = sin_reduced(angle, low), c = cos_reduced(angle, low);
  return {select(small, s, c), select(small, c, s), r};
}

// Arguments up to here are reflected. Between here and 0.75 they are shifted up by one.
template <class T> constexpr T kReflected = T(-0.25);
template <class T> constexpr T kShifted = T(0.75);

// Returns log(x) - b for an x > 0 and b, which is 0 or 1, with a small relative error even where the result is close to zero.
template <class T> PB_HD T log_minus(T x, T b) {
  const Split<T> e = split_exponent(x);
  const T f = e.m - 1, s = f / (2 + f), half = T(0.5) * f;
  const T rest = fma(s, fma(half, f, log_tail(s * s)), e.k * Ln2<T>::lo);
  return fma(e.k, Ln2<T>::hi, -b) + (f - fma(half, f, -rest));
}

// For x <= -0.25 it is log(pi / (a sin(pi a))) - lgamma(a), where a = -x.
template <class T, if_real<T> = 0> PB_HD T lgamma(T x) {
  const bool reflected = x <= kReflected<T>;
  const T a = select(reflected, abs(x), x);
  const bool shifted = a < kShifted<T>;
  const bool far = a > kFar<T>;
  const T t = select(shifted, a, T(a - 1)), v = q_or_u(far, a, t);
  const T l = log_minus(select(far | shifted, abs(a), T(1)), select(far, T(1), T(0)));
  const T polynomial = fma(T(t * (t - 1)), lgamma_near(v), T(0 - l));  // not -l: the zeros are 0, not -0
  const T series = fma(T(a - T(0.5)), l, fma(v, lgamma_far(T(v * v)), T(0.4189385332046727)));
  T y = select(far, series, polynomial);
  const HalfTurn<T> h = half_turn(x);
  y = select(reflected, T(log(T(T(3.141592653589793) / (a * h.sin))) - y), y);
  const bool pole = (x == 0) | (reflected & (h.r == 0));
  return select(pole | (abs(x) == kInfinity<T>), kInfinity<T>, y);
}

// For x <= -0.25 it is digamma(1 - x) - pi cot(pi x).
template <class T, if_real<T> = 0> PB_HD T digamma(T x) {
  const bool reflected = x <= kReflected<T>, shifted = !reflected & (x < kShifted<T>);
  const T z = select(reflected, T(1 - x), select(shifted, T(1 + x), x));
  const bool far = z > kFar<T>;
  const T t = select(reflected, T(-x), select(shifted, x, T(x - 1))), v = q_or_u(far, z, t);
  const T polynomial = ((t - kDigammaZero<T>.hi) - kDigammaZero<T>.lo) * digamma_near(v);
  const T series = log(z) - v * fma(v, digamma_far(T(v * v)), T(0.5));
  const T y = select(far, series, polynomial);
  const HalfTurn<T> h = half_turn(x);
  const T cot = select(reflected, T(T(3.141592653589793) * h.cos), T(1)) / select(reflected, copysign(h.sin, h.r), x);
  T result = select(reflected | shifted, T(y - cot), y);
  result = select(reflected & (h.r == 0), kNaN<T>, result);
  return select(x == kInfinity<T>, x, result);
}

// For x <= -0.25 it is (pi / sin(pi x))^2 - trigamma(1 - x).
template <class T, if_real<T> = 0> PB_HD T trigamma(T x) {
  const bool reflected = x <= kReflected<T>, shifted = !reflected & (x < kShifted<T>);
  const T z = select(reflected, T(1 - x), select(shifted, T(1 + x), x));
  const bool far = z > kFar<T>;
  const T t = select(reflected, T(-x), select(shifted, x, T(x - 1))), v = q_or_u(far, z, t), w = v * v;
  const T series = v * fma(w, trigamma_far(w), fma(T(0.5), v, T(1)));
  const T y = select(far, series, T(trigamma_near(v) / (t + 2)));
  constexpr T kPi = T(3.141592653589793),
              kRest = sizeof(T) == 4 ? T(-2.7827534e-08) : T(3.8981718325193755e-17);  // pi / kPi - 1
  const T pole = select(reflected, kPi, T(1)) / select(reflected, half_turn(x).sin, x), square = pole * pole;
  const T rest = select(reflected & (square < kInfinity<T>), T(2 * kRest * square), T(0));
  return select(reflected, fma(pole, pole, rest - y), select(shifted, fma(pole, pole, y), y));
}

}  // namespace pb::m
