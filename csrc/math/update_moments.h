// Adam and the rules that follow it.
#pragma once
#include "math/update_parts.h"

namespace pb {

// The way in which weight decay enters: through the gradient (an L2 penalty), or through the weight itself.
enum class Decay : int { coupled, decoupled };

// Writes 1 - beta^step for both betas, the first two hyper-parameters, into the first two numbers of the rule.
PB_HD void write_bias_corrections(Setting* set) {
  set[kState] = 1 - whole_power(set[kHyper], set[kStep]);
  set[kState + 1] = 1 - whole_power(set[kHyper + 1], set[kStep]);
}

// What the rules with Adam's slots share: running means of the gradient and of its square, and weight decay of either kind.
// The first four hyper-parameters: beta1, beta2, eps, weight decay.
template <Decay decay, class A> struct Moments {
  Clip<A> clip;
  Penalty<A> penalty;
  Mean<A> first, second;
  A eps, decay_rate;
  explicit PB_HD Moments(const Setting* set)
      : clip(set),
        penalty(set[kHyper + 3]),
        first(set[kHyper]),
        second(set[kHyper + 1]),
        eps(A(set[kHyper + 2])),
        decay_rate(A(set[kRate] * set[kHyper + 3])) {}
  // Updates the means, and returns the gradient that has entered them.
  PB_HD A average(A p, A g, A& m, A& v) const {
    g = clip(g);
    if constexpr (decay == Decay::coupled) g = penalty(p, g);
    m = first(m, g);
    v = second(v, g * g);
    return g;
  }
  // Returns the change together with decoupled weight decay.
  PB_HD A with_decay(A change, A p) const {
    if constexpr (decay == Decay::decoupled) return change - decayed(decay_rate, p);
    return change;
  }
};

// Kingma & Ba 2015, Alg. 1; with decoupled decay Loshchilov & Hutter 2019, Alg. 2. The slots are the running means of the gradient
// and of its square, and for AMSGrad (Reddi et al. 2018, Alg. 2, as in torch.optim.Adam) the largest mean of the square so far.
// hyper: beta1, beta2, eps, weight decay.
template <Decay decay, bool amsgrad> struct Adam {
  static constexpr int kSlots = amsgrad ? 3 : 2, kHypers = 4;
  static PB_HD void advance(Setting* set) { write_bias_corrections(set); }
  template <class A> struct Element : Moments<decay, A> {
    A minus_rate, root_debias2;
    explicit PB_HD Element(const Setting* set)
        : Moments<decay, A>(set), minus_rate(A(-set[kRate] / set[kState])), root_debias2(A(m::sqrt(set[kState + 1]))) {}
    PB_HD A change(A p, A m, A v) const {
      return this->with_decay(minus_rate * (m / (m::sqrt(v) / root_debias2 + this->eps)), p);
    }
    PB_HD A operator()(A p, A g, A& m, A& v) const {
      this->average(p, g, m, v);
      return change(p, m, v);
    }
    PB_HD A operator()(A p, A g, A& m, A& v, A& most) const {
      this->average(p, g, m, v);
      most = larger(most, v);
      return change(p, m, most);
    }
  };
};

// Kingma & Ba 2015, Alg. 2: torch.optim.Adamax's rule. The slots are the running mean of the gradient and its decaying maximum.
// hyper: beta1, beta2, eps, weight decay.
struct Adamax {
  static constexpr int kSlots = 2, kHypers = 4;
  static PB_HD void advance(Setting* set) { set[kState] = 1 - whole_power(set[kHyper], set[kStep]); }
  template <class A> struct Element {
    Clip<A> clip;
    Penalty<A> penalty;
    Mean<A> first;
    A beta2, eps, minus_rate;
    explicit PB_HD Element(const Setting* set)
        : clip(set),
          penalty(set[kHyper + 3]),
          first(set[kHyper]),
          beta2(A(set[kHyper + 1])),
          eps(A(set[kHyper + 2])),
          minus_rate(A(-set[kRate] / set[kState])) {}
    PB_HD A operator()(A p, A g, A& m, A& u) const {
      g = penalty(p, clip(g));
      m = first(m, g);
      u = larger(beta2 * u, m::abs(g) + eps);
      return minus_rate * (m / u);
    }
  };
};

// Dozat 2016: torch.optim.NAdam's rule. The slots are those of Adam. The third number of the rule is the product of the momenta so
// far, and the fourth the next momentum.
// hyper: beta1, beta2, eps, weight decay, decay of the momentum.
template <Decay decay> struct NAdam {
  static constexpr int kSlots = 2, kHypers = 5;
  static PB_HD double momentum(const Setting* set, double step) {
    return set[kHyper] * (1 - 0.5 * m::pow(0.96, step * set[kHyper + 4]));
  }
  static PB_HD void advance(Setting* set) {
    const double before = set[kStep] > 1 ? set[kState + 2] : 1;
    const double now = momentum(set, set[kStep]), next = momentum(set, set[kStep] + 1), product = before * now;
    set[kState] = (1 - now) / (1 - product);
    set[kState + 1] = 1 - whole_power(set[kHyper + 1], set[kStep]);
    set[kState + 2] = product;
    set[kState + 3] = next / (1 - product * next);
  }
  template <class A> struct Element : Moments<decay, A> {
    A gradient_rate, mean_rate, debias2;
    explicit PB_HD Element(const Setting* set)
        : Moments<decay, A>(set),
          gradient_rate(A(-set[kRate] * set[kState])),
          mean_rate(A(-set[kRate] * set[kState + 3])),
          debias2(A(set[kState + 1])) {}
    PB_HD A operator()(A p, A g, A& m, A& v) const {
      g = this->average(p, g, m, v);
      const A spread = m::sqrt(v / debias2) + this->eps;
      return this->with_decay((gradient_rate * g + mean_rate * m) / spread, p);
    }
  };
};

// Liu et al. 2020, Alg. 2: torch.optim.RAdam's rule. The slots are those of Adam. The third number of the rule is the rectification,
// and 0 while the variance of the second mean is not tractable.
// hyper: beta1, beta2, eps, weight decay.
template <Decay decay> struct RAdam {
  static constexpr int kSlots = 2, kHypers = 4;
  static PB_HD void advance(Setting* set) {
    write_bias_corrections(set);
    const double most = 2 / (1 - set[kHyper + 1]) - 1;
    const double length = most - 2 * set[kStep] * (1 - set[kState + 1]) / set[kState + 1];
    const double part = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length);
    set[kState + 2] = length > 5 ? m::sqrt(part * set[kState + 1]) : 0;
  }
  template <class A> struct Element : Moments<decay, A> {
    A minus_rate, rectified;
    explicit PB_HD Element(const Setting* set)
        : Moments<decay, A>(set), minus_rate(A(-set[kRate] / set[kState])), rectified(A(set[kState + 2])) {}
    PB_HD A operator()(A p, A g, A& m, A& v) const {
      this->average(p, g, m, v);
      const A adapted = rectified / (m::sqrt(v) + this->eps);
      return this->with_decay(minus_rate * (m * m::select(rectified == A(0), A(1), adapted)), p);
    }
  };
};

// You et al. 2020, Alg. 2. The slots are those of Adam. A launch before the update writes the trust ratio, which is the norm of
// the weights over that of the direction.
// hyper: beta1, beta2, eps, weight decay.
struct Lamb {
  static constexpr int kSlots = 2, kHypers = 4;
  static PB_HD void advance(Setting* set) { write_bias_corrections(set); }
  // Changes a set after advance() such that the rule's change is the direction itself.
  static PB_HD void measuring(Setting* set) { set[kRate] = -1, set[kRatio] = 1; }
  template <class A> struct Element {
    Clip<A> clip;
    Mean<A> first, second;
    A eps, weight_decay, minus_rate, debias, root_debias2;
    explicit PB_HD Element(const Setting* set)
        : clip(set),
          first(set[kHyper]),
          second(set[kHyper + 1]),
          eps(A(set[kHyper + 2])),
          weight_decay(A(set[kHyper + 3])),
          minus_rate(A(-set[kRate] * set[kRatio])),
          debias(A(1 / set[kState])),
          root_debias2(A(m::sqrt(set[kState + 1]))) {}
    PB_HD A operator()(A p, A g, A& m, A& v) const {
      g = clip(g);
      m = first(m, g);
      v = second(v, g * g);
      return minus_rate * (debias * m / (m::sqrt(v) / root_debias2 + eps) + decayed(weight_decay, p));
    }
  };
};

}  // namespace pb
