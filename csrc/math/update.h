// One step of an optimizer for one element, with the scalars that it computes once: the rules of torch.optim.
#pragma once
#include "math/scalar.h"

namespace pb {

// A number that a step computes with once, not for each element: in the control block, or a hyperparameter.
using Setting = double;

// What changes from step to step, as doubles in the device's memory: a step reads and advances it there, so that a
// replay of a recorded step sees new values.
enum Control : int {
  kStep,     // steps done
  kRate,     // the learning rate of the last step
  kDebias1,  // 1 - beta^step of the last step
  kDebias2,
  kClipFactor,    // gradients are multiplied by it: 1 for none; clip_norm writes it
  kClipValue,     // and then clamped to [-value, value]: infinity for none
  kGradientNorm,  // clip_norm writes it, before clipping
  kSchedule,      // a Schedule, then its arguments
  kBaseRate,
  kArgument,
  kControlSize = 16
};

// The learning rate as a function of t, the steps done before this one. After `steps` it stays where it is.
enum class Schedule : int {
  constant,       // base
  step,           // base * factor^floor(t / every)                                     arguments: every, factor
  exponential,    // base * factor^t                                                               factor
  cosine,         // from base to end along half a cosine                                          steps, end
  linear,         // from base * start to base * end                                               steps, start, end
  polynomial,     // end + (base - end) * (1 - t / steps)^power                                    steps, end, power
  warmup_cosine,  // linearly from start to base in `warmup`, a cosine to end at `steps`  steps, end, warmup, start
};

// x^n for a whole n >= 0, by squaring: quick in one thread of a GPU.
PB_HD double whole_power(double x, double n) {
  double y = 1;
  for (auto rest = uint64_t(n); rest; rest >>= 1) {
    if (rest & 1) y *= x;
    x *= x;
  }
  return y;
}

PB_HD double half_cosine(double from, double to, double part) {
  constexpr double kPi = 3.14159265358979323846;
  return to + (from - to) * (1 + m::cos(kPi * part)) / 2;
}

PB_HD double fraction(double t, double steps) { return t < steps ? t / steps : 1; }

PB_HD double scheduled_rate(const double* control) {
  const double t = control[kStep], base = control[kBaseRate];
  const double* argument = control + kArgument;
  switch (Schedule(int(control[kSchedule]))) {
    case Schedule::step: return base * whole_power(argument[1], m::floor(t / argument[0]));
    case Schedule::exponential: return base * whole_power(argument[0], t);
    case Schedule::cosine: return half_cosine(base, argument[1], fraction(t, argument[0]));
    case Schedule::linear: return base * (argument[1] + (argument[2] - argument[1]) * fraction(t, argument[0]));
    case Schedule::polynomial: return argument[1] + (base - argument[1]) * m::pow(1 - fraction(t, argument[0]), argument[2]);
    case Schedule::warmup_cosine: {
      const double warmup = argument[2], start = argument[3];
      if (t < warmup) return start + (base - start) * (t / warmup);
      return half_cosine(base, argument[1], fraction(t - warmup, argument[0] - warmup));
    }
    case Schedule::constant: break;
  }
  return base;
}

// Begins a step: computes its learning rate, and counts it.
PB_HD void begin_step(double* control) {
  control[kRate] = scheduled_rate(control);
  control[kStep] += 1;
}

// Scales gradients so that their joint norm is at most `most`; as torch.nn.utils.clip_grad_norm_, a norm of NaN stays.
template <class A> PB_HD void clip_to_norm(A* control, A norm, A most) {
  const A factor = most / (norm + A(1e-6));
  control[kGradientNorm] = norm;
  control[kClipFactor] = factor > A(1) ? A(1) : factor;
}

template <class A> struct Clip {
  A factor, least, most;
  explicit PB_HD Clip(const double* control)
      : factor(A(control[kClipFactor])), least(A(-control[kClipValue])), most(A(control[kClipValue])) {}
  // This way round NaN stays NaN.
  PB_HD A operator()(A g) const {
    g = g * factor;
    return g > most ? most : g < least ? least : g;
  }
};

// Where weight decay enters: nowhere, in the gradient (an L2 penalty), or in the weight itself (AdamW).
enum class Decay : int { none, coupled, decoupled };

// An update: advance() begins a step in the control block; an Element is then built from the block and the
// hyperparameters, and called for each weight with its gradient and its slots. It writes the slots and returns what to
// add to the weight.

// hyper: momentum, dampening, weight decay. The slot is the momentum buffer; the first gradient enters it whole.
enum class Momentum : int { none, heavy, nesterov };
template <Momentum momentum, Decay decay> struct Sgd {
  static constexpr int kSlots = momentum == Momentum::none ? 0 : 1;
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

// hyper: beta1, beta2, eps, weight decay. The slots are the means of the gradient and of its square.
// Kingma & Ba 2015, Alg. 1; decoupled decay as in Loshchilov & Hutter 2019, Alg. 2.
template <Decay decay> struct Adam {
  static constexpr int kSlots = 2;
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

}  // namespace pb
