// e^x for an x that is known not to be positive, as in a softmax. It takes two thirds of the work of the general exponential.
#pragma once
#include "math/exp_log.h"

namespace pb::m {

// e^x = power (1 + p) for x <= 0. NaN stays NaN. power is a power of 2, and 0 for results below the smallest normal number, so one step
// of scaling is enough.
template <class T> struct ScaledExp {
  T power, p;
};
template <class T> PB_HD ScaledExp<T> scaled_exp(T x) {
  constexpr T kMin = sizeof(T) == 4 ? T(-88) : T(-709), kRound = Float<T>::kRound + T(Float<T>::kBias);
  x = select(kMin > x, kMin, x);
  // The addition of kRound rounds x / ln 2 to an integer n, and leaves n + bias in the low bits, from which a shift moves it to the
  // exponent.
  const T biased = fma(x, T(1.4426950408889634), kRound), n = biased - kRound;
  const T p = expm1_reduced(fma(-n, Ln2<T>::lo, fma(-n, Ln2<T>::hi, x)));
  return {from_bits<T>(bits(biased) << Float<T>::kMantissa), p};
}

// Return e^x and e^x - 1 for x <= 0, within 1 ulp. Compilers share the work of the two.
template <class T, if_real<T> = 0> PB_HD T exp_nonpositive(T x) {
  const ScaledExp<T> e = scaled_exp(x);
  return fma(e.power, e.p, e.power);
}
template <class T, if_real<T> = 0> PB_HD T expm1_nonpositive(T x) {
  const ScaledExp<T> e = scaled_exp(x);
  return fma(e.power, e.p, T(e.power - 1));
}

}  // namespace pb::m
