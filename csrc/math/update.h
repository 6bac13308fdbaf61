// The update rules of optimizers: what one step adds to one weight. update.def has a row for each.
//
// A rule is a struct with
//   kSlots, kHypers   the number of its slots (state tensors), and of its hyper-parameters
//   advance(set)      writes the numbers that a step computes only once into the set, which begin_step() has advanced before. It
//                     writes the same settings in each step.
//   Element<A>        the rule for one element, in arithmetic of type A. It is built from a set after advance().
//                     f(p, g, slots...) writes the new slots and returns what is added to p.
// A set is the settings of one parameter (settings.h). What happens to a weight after the rule, such as a constraint, is the same for
// all rules. The choice of the struct that runs may not depend on the value of a hyper-parameter, because that value may change
// between two steps and differ between two parameters.
#pragma once
#include "math/rounding.h"
#include "math/update_moments.h"

namespace pb {

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
  static PB_HD void advance(Setting* set) { set[kRate] /= 1 + (set[kStep] - 1) * set[kHyper]; }
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

// Defazio et al. 2024, Alg. 1 and its form with plain gradients. The weights are the points y, at which gradients are computed. The
// last slot is the sequence z, which begins at the weights, and the first one, if `adaptive`, the running mean of the square. The
// numbers of the rule: the share by which the average moves to z, the sum of the weights of the average, and the largest rate so far.
// hyper: beta (1 and 2, and eps, if adaptive), weight decay, the steps of the warm-up, the power of the step and that of the rate in
// the weights of the average.
template <bool adaptive> struct ScheduleFree {
  static constexpr int kSlots = 1 + adaptive, kRest = adaptive ? kHyper + 3 : kHyper + 1, kHypers = adaptive ? 7 : 5;
  static PB_HD void advance(Setting* set) {
    const double step = set[kStep], warmup = set[kRest + 1];
    if (step <= warmup) set[kRate] *= step / warmup;
    if constexpr (adaptive) set[kRate] *= m::sqrt(1 - whole_power(set[kHyper + 1], step));
    const double before = step > 1 ? set[kState + 2] : 0, most = set[kRate] > before ? set[kRate] : before;
    const double weight = m::pow(step, set[kRest + 2]) * m::pow(most, set[kRest + 3]);
    const double sum = (step > 1 ? set[kState + 1] : 0) + weight;
    set[kState] = sum > 0 ? weight / sum : 0;
    set[kState + 1] = sum, set[kState + 2] = most;
  }
  template <class A> struct Element {
    Clip<A> clip;
    A weight_decay, share, rate, y_rate;
    Mean<A> second;
    A eps;
    bool first;
    explicit PB_HD Element(const Setting* set)
        : clip(set),
          weight_decay(A(set[kRest])),
          share(A(set[kState])),
          rate(A(set[kRate])),
          y_rate(A(set[kRate] * (set[kHyper] * (1 - set[kState]) - 1))),
          second(set[kHyper + 1]),
          eps(A(set[kHyper + 2])),
          first(set[kStep] <= 1) {}
    PB_HD A moved(A y, A g, A& z) const {
      g = g + decayed(weight_decay, y);
      z = m::select(first, y, z);
      const A change = share * (z - y) + y_rate * g;
      z = z - rate * g;
      return change;
    }
    PB_HD A operator()(A y, A g, A& z) const { return moved(y, clip(g), z); }
    PB_HD A operator()(A y, A g, A& v, A& z) const {
      g = clip(g);
      v = second(v, g * g);
      return moved(y, g / (m::sqrt(v) + eps), z);
    }
  };
};

}  // namespace pb
