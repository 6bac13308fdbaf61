// What the update rules of math/update.h share.
#pragma once
#include "math/schedule.h"

namespace pb {

// An L2 penalty: weight decay that enters through the gradient. Without it the gradient stays as it is, even where the weight is
// infinite.
template <class A> struct Penalty {
  A decay;
  explicit PB_HD Penalty(Setting decay) : decay(A(decay)) {}
  PB_HD A operator()(A p, A g) const { return m::select(decay == A(0), g, g + decay * p); }
};

// Returns the larger of two numbers, and NaN if one of them is NaN.
template <class A> PB_HD A larger(A a, A b) { return m::select((a > b) | (a != a), a, b); }

// Returns decay * p, and 0 without decay, even where the weight is infinite.
template <class A> PB_HD A decayed(A decay, A p) { return m::select(decay == A(0), A(0), decay * p); }

// The running mean of x in m: keep of it, and the rest of x.
template <class A> struct Mean {
  A keep, take;
  explicit PB_HD Mean(Setting beta) : keep(A(beta)), take(A(1 - beta)) {}
  PB_HD A operator()(A m, A x) const { return keep * m + take * x; }
};

// A master is the float32 value of a half precision weight. If the weight has been assigned since the last step, it counts.
template <class A, class T> PB_HD A master_of(A master, T low) { return A(T(master)) == A(low) ? master : A(low); }

// The number of a rule that the launch before the update writes: the trust ratio.
constexpr int kRatio = kState + 3;

// Writes the trust ratio for these sums of squares, which is 1 if one of them is 0.
template <class A> PB_HD void write_ratio(Setting* set, A weights, A direction) {
  const A ratio = m::sqrt(weights) / m::sqrt(direction);
  set[kRatio] = weights > A(0) && direction > A(0) ? Setting(ratio) : 1;
}

// True for rules with a launch before the update that measures the weights and the direction.
template <class U, class = void> constexpr bool kMeasured = false;
template <class U> constexpr bool kMeasured<U, decltype(U::measuring(nullptr))> = true;

// Begins a step of rule U: the rate and the count, then the rule's own numbers.
template <class U> PB_HD void begin(Setting* set, double rate) {
  begin_step(set, rate);
  U::advance(set);
}
template <class U> PB_HD void begin(Setting* set, const Setting* program) {
  begin_step(set, program);
  U::advance(set);
}

}  // namespace pb
