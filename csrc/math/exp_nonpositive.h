// e^x where x is known not to be positive, as in a softmax: two thirds of the work of the general exponential.
#pragma once
#include "math/exp_log.h"

namespace pb::m {

// One step of scaling is enough: results below the smallest normal number are 0. Within 1 ulp; NaN stays.
template <class T, if_real<T> = 0> PB_HD T exp_nonpositive(T x) {
  constexpr T kMin = sizeof(T) == 4 ? T(-88) : T(-709), kRound = Float<T>::kRound + T(Float<T>::kBias);
  x = select(kMin > x, kMin, x);
  // x / ln 2, rounded by an addition that leaves it in the low bits, beside the bias: where an exponent begins.
  const T biased = x * T(1.4426950408889634) + kRound, n = biased - kRound;
  const T p = expm1_reduced(T((x - n * Ln2<T>::hi) - n * Ln2<T>::lo));
  const T power = from_bits<T>(bits(biased) << Float<T>::kMantissa);
  return power + power * p;
}

}  // namespace pb::m
