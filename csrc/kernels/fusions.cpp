// The patterns of fusions.h.
#include "kernels/fusions.h"

#include <cstring>

#include "kernels/activations.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/rows.h"

namespace pb::kernels {
namespace {

bool same_numbers(const Launch& a, const Launch& b) {
  return !std::memcmp(a.ints, b.ints, sizeof a.ints) && !std::memcmp(a.reals, b.reals, sizeof a.reals);
}

}  // namespace

void fuse_cross_entropy(Plan& plan) {
  for (int s = 0; s < int(plan.steps.size()); ++s) {
    if (plan.steps[s].launch.kernel != &cross_entropy) continue;
    for (int t = s + 1; t < int(plan.steps.size()); ++t) {
      const Step &loss = plan.steps[s], &pullback = plan.steps[t];
      if (pullback.launch.kernel != &cross_entropy_pullback || !same_numbers(loss.launch, pullback.launch)) continue;
      if (!same_view(plan.in(loss, 0), plan.in(pullback, 1)) || !same_view(plan.in(loss, 1), plan.in(pullback, 2))) continue;
      const int place = bring_together(plan, s, t);
      if (place < 0) continue;
      const Step &first = plan.steps[place], &second = plan.steps[place + 1];
      Launch both = second.launch;
      both.kernel = &cross_entropy_with_gradient, both.outputs = 2;
      replace(plan, place, 2, both,
              {plan.out(first), plan.out(second), plan.in(second, 0), plan.in(second, 1), plan.in(second, 2)});
      break;
    }
  }
}

namespace {

// Whether the operand is n numbers, repeated for each row of the matrix that it is added to.
bool is_bias(const Operand& operand) {
  const View& v = operand.view;
  return !v.number && v.ndim == 2 && v.stride[0] == 0 && (v.stride[1] == item_size(v.dtype) || v.shape[1] == 1);
}

Operand transposed(Operand operand) {
  std::swap(operand.view.shape[0], operand.view.shape[1]);
  std::swap(operand.view.stride[0], operand.view.stride[1]);
  return operand;
}

Operand as_vector(Operand operand) {
  operand.view.ndim = 1;
  operand.view.shape[0] = operand.view.shape[1], operand.view.stride[0] = item_size(operand.view.dtype);
  return operand;
}

// The number of the activation that the step applies to `x`; 0 for none.
int activation_of(const Plan& plan, const Step& step, const Operand& x) {
  for (int k = 1; k < kActivations; ++k)
    if (is_named(step, kActivationNames[k]) && same_view(plan.in(step), x)) return k;
  return 0;
}

}  // namespace

void fuse_linear(Plan& plan) {
  for (int s = 0; s < int(plan.steps.size()); ++s) {
    const Operand y = plan.out(plan.steps[s]);
    const bool wide = y.view.dtype == DType::f32 || y.view.dtype == DType::f64;  // halves round after each op
    if (plan.steps[s].launch.kernel->run != matmul || !wide || y.view.ndim != 2 || plan.in(plan.steps[s], 0).view.ndim != 2)
      continue;
    if (plan.in(plan.steps[s], 0).view.shape[1] == 1) continue;  // an outer product: its zeros may have another sign
    const int reader = only_reader(plan, s);
    if (reader < 0 || !is_named(plan.steps[reader], "add")) continue;
    const Step& add = plan.steps[reader];
    const int other = same_view(plan.in(add, 0), y) ? 1 : 0;
    const Operand bias = plan.in(add, other);
    if (!same_view(plan.in(add, 1 - other), y) || same_view(bias, y) || !is_bias(bias) || bias.view.dtype != y.view.dtype)
      continue;
    if (!follows(plan, s, reader)) continue;
    const Operand x = plan.in(plan.steps[s], 0), w = transposed(plan.in(plan.steps[s], 1));
    Operand out = plan.out(plan.steps[s + 1]);
    Launch launch = plan.steps[s].launch;
    launch.kernel = &linear_forward().kernel, launch.table = &linear_forward(), launch.inputs = 3;
    launch.ints[0] = 0;
    replace(plan, s, 2, launch, {out, x, w, as_vector(bias)});
    const int next = only_reader(plan, s);
    const int activation = next < 0 ? 0 : activation_of(plan, plan.steps[next], out);
    if (!activation || !follows(plan, s, next)) continue;
    launch.ints[0] = activation;
    out = plan.out(plan.steps[s + 1]);
    replace(plan, s, 2, launch, {out, x, w, as_vector(bias)});
  }
}

}  // namespace pb::kernels
