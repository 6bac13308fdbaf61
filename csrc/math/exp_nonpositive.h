// e^x for an x that is known not to be positive, as in a softmax. It takes two thirds of the work of the general exponential.
#pragma once
#include "math/exp_log.h"

namespace pb::m {

// Returns e^x for x <= 0, within 1 ulp; NaN stays NaN. Results below the smallest normal number are 0, so one step of scaling is
// enough.
template <class T, if_real<T> = 0> PB_HD T exp_nonpositive(T x) {
  constexpr T kMin = sizeof(T) == 4 ? T(-88) : T(-709), kRound = Float<T>::kRound + T(Float<T>::kBias);
  x = select(kMin > x, kMin, x);
  // The addition of kRound rounds x / ln 2 to an integer n, and leaves n + bias in the low bits, from which a shift moves it to the
  // exponent.
  const T biased = fma(x, T(1.4426950408889634), kRound), n = biased - kRound;
  const T p = expm1_reduced(fma(-n, Ln2<T>::lo, fma(-n, Ln2<T>::hi, x)));
  const T power = from_bits<T>(bits(biased) << Float<T>::kMantissa);
  return fma(power, p, power);
}

}  // namespace pb::m
