// The update rules of optimizers: what one step adds to one weight. update.def has a row for each.
//
// A rule is a struct with
//   kSlots, kHypers           the number of its slots (state tensors), and of its hyper-parameters
//   advance(control, hyper)   begins a step: writes the numbers that the step computes only once into the control block
//   Element<A>                the rule for one element, in arithmetic of type A. It is built from the control block after
//                             advance(), and from the hyper-parameters. f(p, g, slots...) then writes the new slots and returns
//                             what is added to p.
// `control` and `hyper` point to one set of settings, which may come with the launch or from a table in device memory. The choice
// of the struct that runs may not depend on the value of a hyper-parameter.
#pragma once
#include "math/control.h"

namespace pb {

// The way in which weight decay enters: not at all, through the gradient (an L2 penalty), or through the weight itself.
enum class Decay : int { none, coupled, decoupled };

// Stochastic gradient descent: torch.optim.SGD's rule. The slot is the momentum buffer; the first gradient enters it undampened.
// hyper: momentum, dampening, weight decay.
enum class Momentum : int { none, heavy, nesterov };
template <Momentum momentum, Decay decay> struct Sgd {
  static constexpr int kSlots = momentum == Momentum::none ? 0 : 1, kHypers = 3;
  static PB_HD void advance(double* control, const double*) { begin_step(control); }
  template <class A> struct Element {
    Clip<A> clip;
    A minus_rate, keep, keep_old, take, weight_decay;
    PB_HD Element(const double* control, const double* hyper)
        : clip(control),
          minus_rate(A(-control[kRate])),
          keep(A(hyper[0])),
          keep_old(control[kStep] > 1 ? A(hyper[0]) : A(0)),
          take(control[kStep] > 1 ? A(1 - hyper[1]) : A(1)),
          weight_decay(A(hyper[2])) {}
    PB_HD A operator()(A p, A g) const {
      g = clip(g);
      if constexpr (decay == Decay::coupled) g = g + weight_decay * p;
      return minus_rate * g;
    }
    PB_HD A operator()(A p, A g, A& m) const {
      g = clip(g);
      if constexpr (decay == Decay::coupled) g = g + weight_decay * p;
      m = keep_old * m + take * g;
      if constexpr (momentum == Momentum::nesterov) return minus_rate * (g + keep * m);
      return minus_rate * m;
    }
  };
};

// Kingma & Ba 2015, Alg. 1; with decoupled decay Loshchilov & Hutter 2019, Alg. 2. The slots are the running means of the gradient
// and of its square.
// hyper: beta1, beta2, eps, weight decay.
template <Decay decay> struct Adam {
  static constexpr int kSlots = 2, kHypers = 4;
  static PB_HD void advance(double* control, const double* hyper) {
    begin_step(control);
    control[kDebias1] = 1 - whole_power(hyper[0], control[kStep]);
    control[kDebias2] = 1 - whole_power(hyper[1], control[kStep]);
  }
  template <class A> struct Element {
    Clip<A> clip;
    A beta1, beta2, take1, take2, eps, decay_rate, weight_decay, minus_rate, root_debias2;
    PB_HD Element(const double* control, const double* hyper)
        : clip(control),
          beta1(A(hyper[0])),
          beta2(A(hyper[1])),
          take1(A(1 - hyper[0])),
          take2(A(1 - hyper[1])),
          eps(A(hyper[2])),
          decay_rate(A(control[kRate] * hyper[3])),
          weight_decay(A(hyper[3])),
          minus_rate(A(-control[kRate] / control[kDebias1])),
          root_debias2(A(m::sqrt(control[kDebias2]))) {}
    PB_HD A operator()(A p, A g, A& m, A& v) const {
      g = clip(g);
      if constexpr (decay == Decay::coupled) g = g + weight_decay * p;
      m = beta1 * m + take1 * g;
      v = beta2 * v + take2 * (g * g);
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
  static PB_HD void advance(double* control, const double*) { begin_step(control); }
  template <class A> struct Element {
    Clip<A> clip;
    A beta1, beta2, take1, take2, weight_decay, minus_rate;
    PB_HD Element(const double* control, const double* hyper)
        : clip(control),
          beta1(A(hyper[0])),
          beta2(A(hyper[1])),
          take1(A(1 - hyper[0])),
          take2(A(1 - hyper[1])),
          weight_decay(A(hyper[2])),
          minus_rate(A(-control[kRate])) {}
    PB_HD A operator()(A p, A g, A& m) const {
      g = clip(g);
      const A direction = m::sign(beta1 * m + take1 * g);
      m = beta2 * m + take2 * g;
      return minus_rate * (direction + weight_decay * p);
    }
  };
};

}  // namespace pb
