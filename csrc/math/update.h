// The update rules of optimizers: what one step adds to one weight. update.def has a row for each.
//
// A rule is a struct with
//   kSlots, kHypers   the number of its slots (state tensors), and of its hyper-parameters
//   advance(set)      writes the numbers that a step computes only once into the set, which begin_step() has advanced before
//   Element<A>        the rule for one element, in arithmetic of type A. It is built from a set after advance().
//                     f(p, g, slots...) writes the new slots and returns what is added to p.
// A set is the settings of one parameter (settings.h). What happens to a weight after the rule, such as a constraint, is the same for
// all rules. The choice of the struct that runs may not depend on the value of a hyper-parameter, because that value may change between
// two steps and differ between two parameters.
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

// Adds changes that were computed before, by a rule that is not a formula for one element. They come as the gradients.
struct AddChange {
  static constexpr int kSlots = 0, kHypers = 0;
  static PB_HD void advance(Setting*) {}
  template <class A> struct Element {
    explicit PB_HD Element(const Setting*) {}
    PB_HD A operator()(A, A change) const { return change; }
  };
};

// Stochastic gradient descent: torch.optim.SGD's rule. The slot is the momentum buffer; the first gradient enters it undampened.
// hyper: momentum, dampening, weight decay.
enum class Momentum : int { none, heavy, nesterov };
template <Momentum momentum> struct Sgd {
  static constexpr int kSlots = momentum == Momentum::none ? 0 : 1, kHypers = 3;
  static PB_HD void advance(Setting*) {}
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
          take(set[kStep] > 1 && set[kHyper] != 0 ? A(1 - set[kHyper + 1]) : A(1)) {}
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
  static PB_HD void advance(Setting* set) {
    write_bias_corrections(set);
  }
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

// Chen et al. 2023, Alg. 2. The slot is the running mean of the gradient.
// hyper: beta1, beta2, weight decay.
struct Lion {
  static constexpr int kSlots = 1, kHypers = 3;
  static PB_HD void advance(Setting*) {}
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
      return minus_rate * (sign + decayed(weight_decay, p));
    }
  };
};

// torch.optim.RMSprop's rule (Tieleman & Hinton 2012; centered: Graves 2013, eq. 38 to 45). The slots are the running mean of the
// square, then with momentum the momentum buffer, then if centered the running mean of the gradient. The variance of a gradient that
// does not change is 0, which rounding would make negative.
// hyper: alpha, eps, momentum, weight decay.
template <bool momentum, bool centered> struct RMSprop {
  static constexpr int kSlots = 1 + momentum + centered, kHypers = 4;
  static PB_HD void advance(Setting*) {}
  template <class A> struct Element {
    Clip<A> clip;
    Penalty<A> penalty;
    Mean<A> mean;
    A eps, keep, minus_rate;
    explicit PB_HD Element(const Setting* set)
        : clip(set),
          penalty(set[kHyper + 3]),
          mean(set[kHyper]),
          eps(A(set[kHyper + 1])),
          keep(A(set[kHyper + 2])),
          minus_rate(A(-set[kRate])) {}
    template <class... Rest> PB_HD A operator()(A p, A g, A& square, Rest&... rest) const {
      g = penalty(p, clip(g));
      square = mean(square, g * g);
      A* const more[] = {&rest..., nullptr};
      A variance = square;
      if constexpr (centered) {
        A& average = *more[momentum];
        average = mean(average, g);
        variance = larger(square - average * average, A(0));
      }
      g = g / (m::sqrt(variance) + eps);
      if constexpr (momentum) g = *more[0] = keep * *more[0] + g;
      return minus_rate * g;
    }
  };
};

// Duchi et al. 2011: torch.optim.Adagrad's rule. The slot is the sum of the squares.
// hyper: decay of the learning rate, weight decay, eps.
struct Adagrad {
  static constexpr int kSlots = 1, kHypers = 3;
  static PB_HD void advance(Setting* set) {
    set[kRate] /= 1 + (set[kStep] - 1) * set[kHyper];
  }
  template <class A> struct Element {
    Clip<A> clip;
    Penalty<A> penalty;
    A eps, minus_rate;
    explicit PB_HD Element(const Setting* set)
        : clip(set), penalty(set[kHyper + 1]), eps(A(set[kHyper + 2])), minus_rate(A(-set[kRate])) {}
    PB_HD A operator()(A p, A g, A& sum) const {
      g = penalty(p, clip(g));
      sum = sum + g * g;
      return minus_rate * (g / (m::sqrt(sum) + eps));
    }
  };
};

// Zeiler 2012, Alg. 1: torch.optim.Adadelta's rule. The slots are the running means of the squares of the gradient and of the change.
// hyper: rho, eps, weight decay.
struct Adadelta {
  static constexpr int kSlots = 2, kHypers = 3;
  static PB_HD void advance(Setting*) {}
  template <class A> struct Element {
    Clip<A> clip;
    Penalty<A> penalty;
    Mean<A> mean;
    A eps, minus_rate;
    explicit PB_HD Element(const Setting* set)
        : clip(set), penalty(set[kHyper + 2]), mean(set[kHyper]), eps(A(set[kHyper + 1])), minus_rate(A(-set[kRate])) {}
    PB_HD A operator()(A p, A g, A& square, A& change) const {
      g = penalty(p, clip(g));
      square = mean(square, g * g);
      const A step = m::sqrt(change + eps) / m::sqrt(square + eps) * g;
      change = mean(change, step * step);
      return minus_rate * step;
    }
  };
};

// Kingma & Ba 2015, Alg. 2: torch.optim.Adamax's rule. The slots are the running mean of the gradient and its decaying maximum.
// hyper: beta1, beta2, eps, weight decay.
struct Adamax {
  static constexpr int kSlots = 2, kHypers = 4;
  static PB_HD void advance(Setting* set) {
    set[kState] = 1 - whole_power(set[kHyper], set[kStep]);
  }
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
