// The settings of one parameter in an optimizer's step, and what they say about its gradients and its weights.
#pragma once
#include "math/scalar.h"

namespace pb {

// A setting is a number that a step reads once, not once per element.
using Setting = double;

// All that an update of one parameter reads besides the tensors themselves: a set of kSetSize settings in the device's memory. A
// step reads and advances the set there, so that a replay of a recorded step sees the new values. An optimizer has a table of sets,
// one per parameter, or one per parameter and member if a parameter holds the weights of several networks. The groups of parameters,
// the members and the parameters that had no gradient in some step therefore need no separate treatment: their sets differ in value.
// Rows of the same size may follow the sets: the program of the schedules (schedule.h). python/pullback/optim/sets.py names the same
// indices.
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
  kGradientScale,                  // the factor of the gradients before clipping; 0 makes an update change nothing at all
  kLeast,                          // the bounds of a weight after the step, infinite without a constraint
  kMost,
  kKeep,       // the share of the moving average of a weight that a step keeps
  kRateScale,  // the factor of the schedule's rate
  kSchedule,   // the number of a Schedule
  kBaseRate,   // the learning rate that the schedule starts from
  kArgument,   // the first of the schedule's arguments
  kArguments = 7,
  kHyper = kArgument + kArguments,  // the first of the rule's hyper-parameters
  kSetSize = 32
};
static_assert(kHyper < kSetSize);
constexpr int64_t kSetBytes = kSetSize * int64_t(sizeof(Setting));

// Returns an element of a gradient as it enters the joint norm. The norm is computed in float64, but denormal float32 numbers count
// as zero, as in all arithmetic on them.
template <class A> PB_HD A normal_or_zero(A g) {
  if constexpr (sizeof(A) == 4) return m::select(m::abs(g) < A(1.17549435e-38f), A(0), g);
  else return g;
}

// Writes the factor that scales gradients to a norm of at most set[kClipNorm]. `norm` is their joint norm before kGradientScale
// multiplies them. A norm of NaN makes the factor NaN, as in torch.nn.utils.clip_grad_norm_. For an update that changes nothing this
// changes nothing either.
template <class A> PB_HD void clip_to_norm(Setting* set, A norm) {
  if (set[kGradientScale] == 0) return;
  norm = norm * A(set[kGradientScale]);
  const A factor = A(set[kClipNorm]) / (norm + A(1e-6));
  set[kGradientNorm] = Setting(norm);
  set[kClipFactor] = factor > A(1) ? 1 : Setting(factor);
}

// The numbers of a loss scaler. python/pullback/optim/loss_scaler.py names the same indices.
using ScalerNumber = float;
enum ScalerIndex : int {
  kLossScale,     // the factor of the loss
  kGoodSteps,     // the number of steps without an overflow since the scale last changed
  kSkippedSteps,  // the number of steps that changed nothing
  kChecks,        // the number of steps since next_scale() was last called
  kOverflows,     // how many of them changed nothing
  kScalerSize
};

// Returns the factor that gradients need if their loss was multiplied by a scale, and 0 if their joint norm is not finite.
template <class A> PB_HD Setting unscaling(ScalerNumber scale, A norm) { return m::isfinite(norm) ? 1 / Setting(scale) : 0; }

// Counts a step for which unscaling() has returned `factor`.
PB_HD void count_check(ScalerNumber* scaler, Setting factor) {
  scaler[kChecks] += 1;
  if (factor != 0) return;
  scaler[kOverflows] += 1;
  scaler[kSkippedSteps] += 1;
}

// Changes the scale after the steps since the last call: it becomes smaller after an overflow, and larger after `interval` calls
// without one, as in torch.amp.GradScaler. It stays a normal number. Without a step nothing changes.
PB_HD void next_scale(ScalerNumber* scaler, Setting growth, Setting backoff, Setting interval) {
  if (scaler[kChecks] == 0) return;
  const bool overflow = scaler[kOverflows] > 0;
  const ScalerNumber good = scaler[kGoodSteps] + 1;
  const bool grows = !overflow && good >= interval;
  const ScalerNumber scale = ScalerNumber(Setting(scaler[kLossScale]) * (overflow ? backoff : growth));
  if ((overflow || grows) && scale >= 1.17549435e-38f && m::isfinite(scale)) scaler[kLossScale] = scale;
  scaler[kGoodSteps] = overflow || grows ? 0 : good;
  scaler[kChecks] = scaler[kOverflows] = 0;
}

// Returns the factor of the gradient of a unit, such as a row of a matrix, which bounds its norm to a share of the norm of the unit's
// weights: Brock et al. 2021, eq. 3. weights, gradient: sums of squares. scale: kGradientScale. A norm of NaN changes nothing.
template <class A> PB_HD A unit_factor(A weights, A gradient, A scale, A share) {
  const A most = share * m::max(m::sqrt(weights), A(1e-3));  // so that weights of 0 can move
  const A norm = m::sqrt(gradient) * scale;
  return m::select(norm > most, A(most / m::max(norm, A(1e-6))), A(1));
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
  explicit PB_HD Finish(const Setting* set) : Finish(set[kLeast], set[kMost], set[kStep], set[kKeep]) {}
  PB_HD Finish(Setting lower, Setting upper, Setting step, Setting kept)
      : least(A(lower)), most(A(upper)), keep(step > 1 ? A(kept) : A(0)), take(step > 1 ? A(1 - kept) : A(1)) {}
  PB_HD A bounded(A p) const { return limited(p, least, most); }
  PB_HD A averaged(A average, A p) const { return keep * average + take * p; }
};

}  // namespace pb
