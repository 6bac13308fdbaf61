// The update rules of optimizers: what one step adds to one weight. update.def has a row for each.
//
// A rule is a struct with
//   kSlots, kHypers   the number of its slots (state tensors), and of its hyper-parameters
//   advance(set)      begins a step: writes the numbers that the step computes only once into the set
//   Element<A>        the rule for one element, in arithmetic of type A. It is built from a set after advance().
//                     f(p, g, slots...) writes the new slots and returns what is added to p.
// A set is the settings of one parameter (settings.h). The choice of the struct that runs may not depend on the value of a
// hyper-parameter, because that value may change between two steps and differ between two parameters.
#pragma once
#include "math/settings.h"

namespace pb {

// An L2 penalty: weight decay that enters through the gradient. Without it the gradient stays as it is, even where the weight is
// infinite.
template <class A> struct Penalty {
  A decay;
  explicit PB_HD Penalty(Setting decay) : decay(A(decay)) {}
  PB_HD A operator()(A p, A g) const { return m::select(decay == A(0), g, g + decay * p); }
};

// The running mean of x in m: keep of it, and the rest of x.
template <class A> struct Mean {
  A keep, take;
  explicit PB_HD Mean(Setting beta) : keep(A(beta)), take(A(1 - beta)) {}
  PB_HD A operator()(A m, A x) const { return keep * m + take * x; }
};

// Stochastic gradient descent: torch.optim.SGD's rule. The slot is the momentum buffer; the first gradient enters it undampened.
// hyper: momentum, dampening, weight decay.
enum class Momentum : int { none, heavy, nesterov };
template <Momentum momentum> struct Sgd {
  static constexpr int kSlots = momentum == Momentum::none ? 0 : 1, kHypers = 3;
  static PB_HD void advance(Setting* set) { begin_step(set); }
  template <class A> struct Element {
    Clip<A> clip;
    Penalty<A> penalty;
    A minus_rate, keep, keep_old, take;
    explicit PB_HD Element(const Setting* set)
        : clip(set),
          penalty(set[kHyper + 2]),
          minus_rate(A(-set[kRate])),
          keep(A(set[kHyper])),
          keep_old(set[kStep] > 1 ? A(set[kHyper]) : A(0)),
          take(set[kStep] > 1 ? A(1 - set[kHyper + 1]) : A(1)) {}
    PB_HD A operator()(A p, A g) const { return minus_rate * penalty(p, clip(g)); }
    PB_HD A operator()(A p, A g, A& m) const {
      g = penalty(p, clip(g));
      m = keep_old * m + take * g;
      if constexpr (momentum == Momentum::nesterov) return minus_rate * (g + keep * m);
      return minus_rate * m;
    }
  };
};

// The way in which weight decay enters: through the gradient (an L2 penalty), or through the weight itself.
enum class Decay : int { coupled, decoupled };

// Kingma & Ba 2015, Alg. 1; with decoupled decay Loshchilov & Hutter 2019, Alg. 2. The slots are the running means of the gradient
// and of its square.
// hyper: beta1, beta2, eps, weight decay.
template <Decay decay> struct Adam {
  static constexpr int kSlots = 2, kHypers = 4;
  static PB_HD void advance(Setting* set) {
    begin_step(set);
    set[kState] = 1 - whole_power(set[kHyper], set[kStep]);
    set[kState + 1] = 1 - whole_power(set[kHyper + 1], set[kStep]);
  }
  template <class A> struct Element {
    Clip<A> clip;
    Penalty<A> penalty;
    Mean<A> first, second;
    A eps, decay_rate, minus_rate, root_debias2;
    explicit PB_HD Element(const Setting* set)
        : clip(set),
          penalty(set[kHyper + 3]),
          first(set[kHyper]),
          second(set[kHyper + 1]),
          eps(A(set[kHyper + 2])),
          decay_rate(A(set[kRate] * set[kHyper + 3])),
          minus_rate(A(-set[kRate] / set[kState])),
          root_debias2(A(m::sqrt(set[kState + 1]))) {}
    PB_HD A operator()(A p, A g, A& m, A& v) const {
      g = clip(g);
      if constexpr (decay == Decay::coupled) g = penalty(p, g);
      m = first(m, g);
      v = second(v, g * g);
      const A change = minus_rate * (m / (m::sqrt(v) / root_debias2 + eps));
      if constexpr (decay == Decay::decoupled) return change - decay_rate * p;
      return change;
    }
  };
};

// Chen et al. 2023, Alg. 2. The slot is the running mean of the gradient.
// hyper: beta1, beta2, weight decay.
struct Lion {
  static constexpr int kSlots = 1, kHypers = 3;
  static PB_HD void advance(Setting* set) { begin_step(set); }
  template <class A> struct Element {
    Clip<A> clip;
    Mean<A> direction, mean;
    A weight_decay, minus_rate;
    explicit PB_HD Element(const Setting* set)
        : clip(set),
          direction(set[kHyper]),
          mean(set[kHyper + 1]),
          weight_decay(A(set[kHyper + 2])),
          minus_rate(A(-set[kRate])) {}
    PB_HD A operator()(A p, A g, A& m) const {
      g = clip(g);
      const A sign = m::sign(direction(m, g));
      m = mean(m, g);
      return minus_rate * (sign + weight_decay * p);
    }
  };
};

}  // namespace pb
