// Functions composed of others, on any scalar: on CountingScalar their parts are what is counted.
#pragma once
#include "math/counting.h"
#include "math/error_function.h"
#include "math/hyperbolic.h"
#include "math/power.h"
#include "math/trig.h"

namespace pb::m {

// From e^-|x|, which does not overflow: 1 / (1 + e^-x) would be 0 where e^-x is infinite and the result is a subnormal number.
template <class A> PB_HD A sigmoid(A x) {
  const A e = exp(-abs(x));
  return select(x < A(0), e, A(1)) / (A(1) + e);
}

// log(1 + e^x) and log(e^a + e^b), from the larger exponent, so that neither overflows.
template <class A> PB_HD A softplus(A x) { return max(x, A(0)) + log1p(exp(-abs(x))); }
template <class A> PB_HD A logaddexp(A a, A b) {
  const A distance = select(a == b, A(0), A(abs(a - b)));  // equal infinities are no distance apart
  return max(a, b) + log1p(exp(-distance));
}

// x times the sigmoid, even where the latter is subnormal.
template <class T, if_real<T> = 0> PB_HD T times_sigmoid(T factor, T x) {
  const T below = -abs(x);
  return select(x < 0, exp_times(below, T(0), factor), factor) / (1 + exp(below));
}
template <class A, std::enable_if_t<!is_real<A>, int> = 0> PB_HD A times_normal_cdf(A factor, A x) {
  return factor * normal_cdf(x);
}
template <class A, std::enable_if_t<!is_real<A>, int> = 0> PB_HD A times_sigmoid(A factor, A x) { return factor * sigmoid(x); }

// Where the factor beside x has long reached its limit: kept finite, so that infinity times 0 does not become NaN.
template <class A> PB_HD A bounded(A x, double limit) { return min(max(x, A(-limit)), A(limit)); }

// x times the normal distribution function (Hendrycks & Gimpel 2016), and its usual approximation.
template <class A> PB_HD A gelu(A x) {
  const A c = max(x, A(-40));
  return times_normal_cdf(c, c);
}
template <class A> PB_HD A gelu_slope(A x) {
  const A c = bounded(x, 40);
  return normal_cdf(c) + c * normal_density(c);
}
template <class A> PB_HD A gelu_tanh_gate(A x) {
  return A(1.5957691216057308) * (x + A(0.044715) * (x * x * x));  // 2 sqrt(2 / pi): (1 + tanh(u / 2)) / 2 = sigmoid(u)
}
template <class A> PB_HD A gelu_tanh(A x) {
  const A c = max(x, A(-40));
  return times_sigmoid(c, gelu_tanh_gate(c));
}
template <class A> PB_HD A gelu_tanh_slope(A x) {
  const A c = bounded(x, 40), s = sigmoid(gelu_tanh_gate(c));
  return s + c * s * (A(1) - s) * (A(1.5957691216057308) + A(0.2140644488178602) * (c * c));
}

// x sigmoid(x) (Ramachandran et al. 2017).
template <class A> PB_HD A silu(A x) {
  const A c = max(x, A(-800));
  return times_sigmoid(c, c);
}
template <class A> PB_HD A silu_slope(A x) {
  const A c = bounded(x, 800), s = sigmoid(c);
  return s + c * (s * (A(1) - s));
}

// d pow(a, b) / da and db. Powers of 0 by a constant have slopes, and so has 0 to a power that stays positive.
// The slopes of atan2, b / (a^2 + b^2) and -a / (a^2 + b^2), by the ratio of the smaller number to the larger one, because the
// squares of large numbers are infinite and those of small ones zero. Where an argument is infinite, they are zero.
template <class A> PB_HD A atan2_slope(A a, A b, bool of_a) {
  const bool steep = abs(a) > abs(b);
  const A large = select(steep, a, b), small = select(steep, b, a);
  const A ratio = select(isinf(small), A(0), small) / large;
  return select(steep == of_a, ratio, A(1)) / (A(1) + ratio * ratio) / large;
}
template <class A> PB_HD A atan2_slope_a(A a, A b) { return atan2_slope(a, b, true); }
template <class A> PB_HD A atan2_slope_b(A a, A b) { return -atan2_slope(a, b, false); }

template <class A> PB_HD A pow_slope_a(A a, A b) { return select(b == A(0), A(0), A(b * pow(a, b - A(1)))); }
template <class A> PB_HD A pow_slope_b(A a, A b, A y) { return select((a == A(0)) & (b >= A(0)), A(0), A(y * log(a))); }

// Of a tie each side gets half.
template <class A> PB_HD A share(bool wins, bool ties, A g) { return select(ties, A(A(0.5) * g), select(wins, g, A(0))); }

}  // namespace pb::m
