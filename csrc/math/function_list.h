// The functions of this folder, listed by their cost on CountingScalar. Each list calls EACH(name) for every function in it.
#pragma once

// clang-format off
// These functions count as one special operation, whatever they do inside.
#define PB_SPECIAL_OF_ONE(EACH) \
  EACH(exp) EACH(exp_nonpositive) EACH(expm1_nonpositive) EACH(exp2) EACH(expm1) EACH(log) EACH(log2) EACH(log10) EACH(log1p) \
  EACH(sin) EACH(cos) EACH(tan) EACH(asin) EACH(acos) EACH(atan) EACH(sinh) EACH(cosh) EACH(tanh) EACH(asinh) EACH(acosh) \
  EACH(atanh) EACH(erf) EACH(erfc) EACH(erfinv) EACH(normal_cdf) EACH(normal_density) EACH(sqrt) EACH(rsqrt) \
  EACH(lgamma) EACH(digamma) EACH(trigamma)
#define PB_SPECIAL_OF_TWO(EACH) EACH(pow) EACH(atan2) EACH(hypot) EACH(remainder) EACH(floor_divide)

// These functions are free: choices, signs and rounding.
#define PB_FREE_OF_ONE(EACH) EACH(abs) EACH(sign) EACH(floor) EACH(ceil) EACH(trunc) EACH(round)
#define PB_FREE_OF_TWO(EACH) EACH(copysign) EACH(max) EACH(min) EACH(mask_nan_gradient)
#define PB_PREDICATES(EACH) EACH(isnan) EACH(isinf) EACH(isfinite) EACH(signbit)
// clang-format on
