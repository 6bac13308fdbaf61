// The settings of one parameter in an optimizer's step, and the learning rates that are computed from them.
#pragma once
#include "math/scalar.h"

namespace pb {

// A setting is a number that a step reads once, not once per element.
using Setting = double;

// All that an update of one parameter reads besides the tensors themselves: a set of kSetSize settings in the device's memory. A
// step reads and advances the set there, so that a replay of a recorded step sees the new values. An optimizer has a table of sets,
// one per parameter, or one per parameter and member if a parameter holds the weights of several networks. The groups of parameters,
// the members and the parameters that had no gradient in some step therefore need no separate treatment: their sets differ in value.
// python/pullback/optim/sets.py names the same indices.
enum SettingIndex : int {
  kStep,                           // the number of steps done with a gradient
  kRate,                           // the learning rate of the last step
  kClock,                          // the number of steps that the optimizer has done, which schedules use
  kState,                          // the first of the numbers that the rule computes once per step, such as a bias correction
  kStates = 4,                     // how many these are at most
  kClipFactor = kState + kStates,  // the factor by which gradients are multiplied; clip_norm writes it, and 1 means no clipping
  kClipValue,                      // the bound to which gradients are clamped afterwards; infinity means no clamping
  kGradientNorm,                   // the joint norm of the gradients before clipping; clip_norm writes it
  kClipNorm,                       // the largest joint norm that clip_norm leaves unscaled
  kGradientScale,                  // the factor of the gradients before clipping, such as the inverse of a loss's scale
  kLeast,                          // the bounds of a weight after the step, infinite without a constraint
  kMost,
  kKeep,                           // the share of the moving average of a weight that a step keeps
  kRateScale,                      // the factor of the schedule's rate
  kSchedule,                       // the number of a Schedule
  kBaseRate,                       // the learning rate that the schedule starts from
  kArgument,                       // the first of the schedule's arguments
  kArguments = 7,
  kHyper = kArgument + kArguments,  // the first of the rule's hyper-parameters
  kSetSize = 32
};
static_assert(kHyper < kSetSize);
constexpr int64_t kSetBytes = kSetSize * int64_t(sizeof(Setting));

// The learning rate as a function of t, the number of steps that the optimizer has done before this one. After `steps` steps the rate no longer changes.
enum class Schedule : int {
  constant,       // base
  step,           // base * factor^floor(t / every)                                     arguments: every, factor
  exponential,    // base * factor^t                                                               factor
  cosine,         // from base to end along half a cosine                                          steps, end
  linear,         // from base * start to base * end                                               steps, start, end
  polynomial,     // end + (base - end) * (1 - t / steps)^power                                    steps, end, power
  warmup_cosine,  // linearly from start to base in `warmup`, a cosine to end at `steps`  steps, end, warmup, start
  multi_step,     // base * factor^(number of milestones <= t); a milestone of 0 is none           factor, six milestones
  one_cycle,      // half a cosine from base / divisor up to base in `warmup` * steps - 1 steps, and another one down to
                  // base / divisor / last divisor at step steps - 1                               steps, warmup, divisor, last
  restarts,       // half a cosine from base to end again and again, each `growth` times as long   steps, growth, end
  cyclic,         // from base to high in `up` and back in `down`; high - base shrinks by `factor` high, up, down, factor
  warmup_stable,  // linearly from start to base in `warmup`, base, and in the last `decay` steps to end: a share x of them later
                  // end + (base - end) * (1 - x^power)                    steps, warmup, decay, end, start, power
};

// Returns x^n for a whole n >= 0, by repeated squaring, because one thread of a GPU computes it while its block waits.
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

PB_HD double one_cycle_rate(double t, double base, const Setting* argument) {
  const double first = base / argument[2], top = argument[1] * argument[0] - 1, last = argument[0] - 1;
  if (t <= top) return half_cosine(first, base, top > 0 ? t / top : 1);
  return half_cosine(base, first / argument[3], t < last ? (t - top) / (last - top) : 1);
}

PB_HD double restarts_rate(double t, double base, const Setting* argument) {
  double length = argument[0];
  if (argument[1] == 1) {
    t -= length * m::floor(t / length);
  } else {
    for (; t >= length; length *= argument[1]) t -= length;
  }
  return half_cosine(base, argument[2], t / length);
}

PB_HD double cyclic_rate(double t, double base, const Setting* argument) {
  const double high = argument[0], up = argument[1], down = argument[2];
  const double cycle = m::floor(t / (up + down)), rest = t - cycle * (up + down);
  return base + (high - base) * (rest < up ? rest / up : (up + down - rest) / down) * whole_power(argument[3], cycle);
}

PB_HD double fraction(double t, double steps) { return t < steps ? t / steps : 1; }

PB_HD double scheduled_rate(const Setting* set, const Setting* /*program*/) {
  const double t = set[kClock], base = set[kBaseRate];
  const Setting* argument = set + kArgument;
  switch (Schedule(int(set[kSchedule]))) {
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
    case Schedule::multi_step: {
      double rate = base;
      for (int k = 1; k < kArguments; ++k)
        if (argument[k] > 0 && argument[k] <= t) rate *= argument[0];
      return rate;
    }
    case Schedule::one_cycle: return one_cycle_rate(t, base, argument);
    case Schedule::restarts: return restarts_rate(t, base, argument);
    case Schedule::cyclic: return cyclic_rate(t, base, argument);
    case Schedule::warmup_stable: {
      const double steps = argument[0], warmup = argument[1], decay = argument[2], end = argument[3], start = argument[4];
      if (t < warmup) return start + (base - start) * (t / warmup);
      if (t < steps - decay) return base;
      return end + (base - end) * (1 - m::pow(decay > 0 ? fraction(t - (steps - decay), decay) : 1, argument[5]));
    }
    case Schedule::constant: break;
  }
  return base;
}

// Begins a step: computes its learning rate, and counts it. The clock advances after the step, in the sets of all parameters.
PB_HD void begin_step(Setting* set, const Setting* program) {
  set[kRate] = scheduled_rate(set, program) * set[kRateScale];
  set[kStep] += 1;
}

// Returns an element of a gradient as it enters the joint norm. The norm is computed in float64, but denormal float32 numbers count
// as zero, as in all arithmetic on them.
template <class A> PB_HD A normal_or_zero(A g) {
  if constexpr (sizeof(A) == 4) return m::select(m::abs(g) < A(1.17549435e-38f), A(0), g);
  else return g;
}

// Writes the factor that scales gradients to a norm of at most set[kClipNorm]. `norm` is their joint norm before kGradientScale
// multiplies them. A norm of NaN makes the factor NaN, as in torch.nn.utils.clip_grad_norm_.
template <class A> PB_HD void clip_to_norm(Setting* set, A norm) {
  norm = norm * A(set[kGradientScale]);
  const A factor = A(set[kClipNorm]) / (norm + A(1e-6));
  set[kGradientNorm] = Setting(norm);
  set[kClipFactor] = factor > A(1) ? 1 : Setting(factor);
}

// Returns x within [least, most]. Comparisons with NaN are false, so that the last choice, x itself, keeps NaN.
template <class A> PB_HD A limited(A x, A least, A most) {
  const A above = x < least ? least : x;
  return above > most ? most : above;
}

// Clips one gradient as the set says.
template <class A> struct Clip {
  A factor, least, most;
  explicit PB_HD Clip(const Setting* set)
      : factor(A(set[kClipFactor] * set[kGradientScale])), least(A(-set[kClipValue])), most(A(set[kClipValue])) {}
  PB_HD A operator()(A g) const { return limited(g * factor, least, most); }
};

// What follows the rule: the bounds of the weights, and their moving average, which is the weights themselves after the first step.
template <class A> struct Finish {
  A least, most, keep, take;
  explicit PB_HD Finish(const Setting* set)
      : least(A(set[kLeast])),
        most(A(set[kMost])),
        keep(set[kStep] > 1 ? A(set[kKeep]) : A(0)),
        take(set[kStep] > 1 ? A(1 - set[kKeep]) : A(1)) {}
  PB_HD A bounded(A p) const { return limited(p, least, most); }
  PB_HD A averaged(A average, A p) const { return keep * average + take * p; }
};

}  // namespace pb
