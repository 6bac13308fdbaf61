// Functions that are composed of the functions of this folder, on any scalar. On CountingScalar the operations of their parts are
// counted.
#pragma once
#include "math/counting.h"
#include "math/error_function.h"
#include "math/hyperbolic.h"
#include "math/power.h"
#include "math/trig.h"

namespace pb::m {

// Uses e^-|x|, which does not overflow. 1 / (1 + e^-x) would be 0 if e^-x is infinite, although the result is a subnormal number.
template <class A> PB_HD A sigmoid(A x) {
  const A e = exp(-abs(x));
  return select(x < A(0), e, A(1)) / (A(1) + e);
}

// Return log(1 + e^x) and log(e^a + e^b). The larger exponent is factored out, so that no exponential overflows.
template <class A> PB_HD A softplus(A x) { return max(x, A(0)) + log1p(exp(-abs(x))); }
template <class A> PB_HD A logaddexp(A a, A b) {
  const A distance = select(a == b, A(0), A(abs(a - b)));  // the distance of equal infinities is 0, not NaN
  return max(a, b) + log1p(exp(-distance));
}
// Returns the derivative of logaddexp(a, b) by a: 0 if a is -inf, also if b is. Equal numbers of +inf have none: NaN.
template <class A> PB_HD A logaddexp_slope(A a, A b) { return sigmoid(select((a == b) & (a == lowest<A>()), a, A(a - b))); }

// Returns factor * sigmoid(x), with full precision even if sigmoid(x) is subnormal.
template <class T, if_real<T> = 0> PB_HD T times_sigmoid(T factor, T x) {
  const T below = -abs(x);
  return select(x < 0, exp_times(exp_parts(below), factor), factor) / (1 + exp(below));
}
template <class A, std::enable_if_t<!is_real<A>, int> = 0> PB_HD A times_normal_cdf(A factor, A x) {
  return factor * normal_cdf(x);
}
template <class A, std::enable_if_t<!is_real<A>, int> = 0> PB_HD A times_sigmoid(A factor, A x) { return factor * sigmoid(x); }

// Clamps x to [-limit, limit]. The factor that multiplies x has long reached its limit there, and an infinite x could meet a factor
// of 0, which gives NaN.
template <class A> PB_HD A bounded(A x, double limit) { return min(max(x, A(-limit)), A(limit)); }

// gelu(x) is x times the normal distribution function (Hendrycks & Gimpel 2016). gelu_tanh(x) is its usual approximation by tanh.
template <class A> PB_HD A gelu(A x) {
  const A c = max(x, A(-40));
  return times_normal_cdf(c, c);
}
template <class A> PB_HD A gelu_slope(A x) {
  const A c = bounded(x, 40);
  return fma(c, normal_density(c), normal_cdf(c));
}
// Returns u = 2 sqrt(2 / pi) (x + 0.044715 x^3). The factor of x in gelu_tanh, (1 + tanh(u / 2)) / 2, is sigmoid(u).
template <class A> PB_HD A gelu_tanh_gate(A x) { return x * fma(A(0.07135481627260025), x * x, A(1.5957691216057308)); }
template <class A> PB_HD A gelu_tanh(A x) {
  const A c = max(x, A(-40));
  return times_sigmoid(c, gelu_tanh_gate(c));
}
template <class A> PB_HD A gelu_tanh_slope(A x) {
  const A c = bounded(x, 40), s = sigmoid(gelu_tanh_gate(c));
  return fma(c * s * (A(1) - s), fma(A(0.2140644488178602), c * c, A(1.5957691216057308)), s);
}

// silu(x) is x sigmoid(x) (Ramachandran et al. 2017).
template <class A> PB_HD A silu(A x) {
  const A c = max(x, A(-800));
  return times_sigmoid(c, c);
}
template <class A> PB_HD A silu_slope(A x) {
  const A c = bounded(x, 800), s = sigmoid(c);
  return fma(c, s * (A(1) - s), s);
}

// Returns b / (a^2 + b^2) if of_a, otherwise a / (a^2 + b^2): the derivatives of atan2(a, b), the second without its minus sign.
// They are computed from the ratio of the smaller number to the larger one, because squares of large numbers overflow and squares
// of small numbers underflow. Both are 0 if an argument is infinite.
template <class A> PB_HD A atan2_slope(A a, A b, bool of_a) {
  const bool steep = abs(a) > abs(b);
  const A large = select(steep, a, b), small = select(steep, b, a);
  const A ratio = select(isinf(small), A(0), small) / large;
  return select(steep == of_a, ratio, A(1)) / (A(1) + ratio * ratio) / large;
}
template <class A> PB_HD A atan2_slope_a(A a, A b) { return atan2_slope(a, b, true); }
template <class A> PB_HD A atan2_slope_b(A a, A b) { return -atan2_slope(a, b, false); }

// Return the derivatives of y = pow(a, b) by a and by b. The first is 0 if b is 0, because y is then constant. The second is 0 if a
// is 0 and b is not negative; y log(a) would not be finite there.
template <class A> PB_HD A pow_slope_a(A a, A b) { return select(b == A(0), A(0), A(b * pow(a, b - A(1)))); }
template <class A> PB_HD A pow_slope_b(A a, A b, A y) { return select((a == A(0)) & (b >= A(0)), A(0), A(y * log(a))); }

// Returns the share of the cotangent g that an argument of max or min gets: all if it wins, half in a tie.
template <class A> PB_HD A share(bool wins, bool ties, A g) { return select(ties, A(A(0.5) * g), select(wins, g, A(0))); }

}  // namespace pb::m
