// Projections of vectors of weights: onto a largest norm, onto the norm 1, and onto the distributions (optim.constraints).
#pragma once
#include "math/settings.h"

namespace pb {

enum class Limit : int { max_norm, unit_norm, simplex };

// Returns the power of two that brings a positive number into [1, 4); 1 for zeros, denormal numbers, infinity and NaN.
template <class A> PB_HD A scale_to_one(A top) {
  using F = m::Float<A>;
  using Bits = m::bits_t<A>;
  constexpr Bits kLargest = 2 * Bits(F::kBias) + 1;  // the exponent of infinity and NaN
  const Bits exponent = m::bits(top) >> F::kMantissa;
  const Bits opposite = exponent + 1 < kLargest ? kLargest - 1 - exponent : 1;
  return exponent == 0 || exponent == kLargest ? A(1) : m::from_bits<A>(opposite << F::kMantissa);
}

// The multiplication that gives a vector a norm. It is done in two steps, neither of which overflows or loses digits.
template <class A> struct Rescaling {
  A scale, factor;
  bool keeps;  // the vector stays as it is

  // scale: scale_to_one() of the largest element. squares: the sum of the squares of the elements times `scale`. most: the largest
  // norm, and the norm that a longer vector gets.
  PB_HD Rescaling(Limit limit, A scaled_by, double squares, double most, double shortened) : scale(scaled_by) {
    const double norm = m::sqrt(squares);
    keeps = limit == Limit::max_norm ? norm <= most * double(scale) : norm == 0;
    // An infinite element makes all others NaN, too.
    factor = A(m::isfinite(norm) ? shortened / norm : m::kNaN<double>);
  }
  PB_HD A operator()(A x) const { return m::select(keeps, x, A(x * scale * factor)); }
};

// Returns a weight as an element of the vector that becomes a distribution. One that is pruned is no part of it, and an infinite one
// makes the vector NaN.
template <class A> PB_HD A element_of_distribution(A x, bool kept) {
  constexpr A kNone = -m::kInfinity<A>;
  return m::select(kept, m::select(m::isinf(x), m::kNaN<A>, x), kNone);
}

// The nearest distribution of a vector is the positive part of x - top - threshold, where `top` is the largest element. The
// threshold is the root of a function that is convex and piecewise linear: the sum of the positive parts, minus 1. Newton's method
// reaches it from below in a few rounds: each of them takes the elements above the threshold of the one before, until their number
// stays the same (Michelot 1986).
struct Threshold {
  double value = -1;  // elements that are 1 or more below the largest one become 0
  int64_t count = -1;

  // Returns false if the threshold is final. above: the number of elements above it.
  PB_HD bool improves(int64_t above) {
    if (above == count) return false;
    count = above;
    return true;
  }
  // sum: of the elements that are above.
  PB_HD void improve(double sum) { value = (sum - 1) / double(count); }

  // NaN is above every threshold, so that the sum, and then each element, becomes NaN.
  template <class A> PB_HD bool is_below(A y) const { return !(double(y) <= value); }
  template <class A> PB_HD A positive_part(A y) const {
    const A rest = A(double(y) - value);
    return m::select(rest < A(0), A(0), rest);
  }
};

}  // namespace pb
