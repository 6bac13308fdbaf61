// The implementation of fusions.h: each function searches a plan for its pattern.
#include "families/fusions.h"

#include <cstring>

#include "families/copy.h"
#include "families/elementwise.h"
#include "families/head.h"
#include "families/matmul.h"
#include "families/rows.h"
#include "families/squared_error.h"

namespace pb::kernels {
namespace {

bool same_numbers(const Launch& a, const Launch& b) {
  return !std::memcmp(a.ints, b.ints, sizeof a.ints) && !std::memcmp(a.reals, b.reals, sizeof a.reals);
}

// A loss of two operands, its pullback, whose operands are g and those two, and the kernel that does the work of both.
struct LossKernels {
  const Kernel *loss, *pullback, *both;
};
constexpr LossKernels kLosses[] = {
    {&cross_entropy, &cross_entropy_pullback, &cross_entropy_with_gradient},
    {&cross_entropy_total, &cross_entropy_total_pullback, &cross_entropy_total_with_gradient},
    {&squared_error, &squared_error_pullback, &squared_error_with_gradient},
};

// Fuses the loss in step s and a later pullback of it. Returns false if there is none that can be fused. Another step may then be
// number s.
bool fuse_loss(Plan& plan, int s, const LossKernels& kernels) {
  for (int t = s + 1; t < int(plan.steps.size()); ++t) {
    const Step &loss = plan.steps[s], &pullback = plan.steps[t];
    if (pullback.launch.kernel != kernels.pullback || !same_numbers(loss.launch, pullback.launch)) continue;
    if (!same_view(plan.in(loss, 0), plan.in(pullback, 1)) || !same_view(plan.in(loss, 1), plan.in(pullback, 2))) continue;
    const int place = bring_together(plan, s, t);
    if (place < 0) continue;
    const Step &first = plan.steps[place], &second = plan.steps[place + 1];
    Launch both = second.launch;
    both.kernel = kernels.both, both.outputs = 2;
    replace(plan, place, 2, both,
            {plan.out(first), plan.out(second), plan.in(second, 0), plan.in(second, 1), plan.in(second, 2)});
    return true;
  }
  return false;
}

}  // namespace

void fuse_losses(Plan& plan) {
  for (int s = 0; s < int(plan.steps.size()); ++s)
    for (const LossKernels& kernels : kLosses)
      while (plan.steps[s].launch.kernel == kernels.loss && fuse_loss(plan, s, kernels)) {}
}

namespace {

// True if the operand is a vector that is repeated for each row of the matrix that it is added to.
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

// Returns the number of the activation that the step applies to `x`, or 0 if it applies none.
int activation_of(const Plan& plan, const Step& step, const Operand& x) {
  for (int k = 1; k < kActivations; ++k)
    if (is_named(step, kActivationNames[k]) && same_view(plan.in(step), x)) return k;
  return 0;
}

// True for the dtypes whose ops can be fused. Half precision would be rounded after each separate op.
bool is_wide(const View& v) { return v.dtype == DType::f32 || v.dtype == DType::f64; }

// True if the step is a product of two matrices.
bool is_matrix_product(const Plan& plan, const Step& step) {
  return step.launch.kernel->run == matmul && plan.in(step, 0).view.ndim == 2 && plan.in(step, 1).view.ndim == 2;
}

}  // namespace

void fuse_linear(Plan& plan, bool (*keeps_bits)(DType dtype, Precision precision, int64_t m, int64_t n, int64_t k)) {
  Uses uses(plan);
  for (int s = 0; s < int(plan.steps.size()); ++s) {
    if (uses.merged(s) || !is_matrix_product(plan, plan.steps[s])) continue;
    const Operand y = plan.out(plan.steps[s]), x = plan.in(plan.steps[s], 0);
    const int64_t m = y.view.shape[0], n = y.view.shape[1], k = x.view.shape[1];
    if (!is_wide(y.view) || k == 1) continue;  // signs of zeros may differ in an outer product
    if (!keeps_bits(y.view.dtype, Precision(plan.steps[s].attribution.precision), m, n, k)) continue;
    const int reader = uses.only_reader(s);
    if (reader < 0 || !is_named(plan.steps[reader], "add")) continue;
    const Step& add = plan.steps[reader];
    const int other = same_view(plan.in(add, 0), y) ? 1 : 0;
    const Operand bias = plan.in(add, other);
    if (!same_view(plan.in(add, 1 - other), y) || same_view(bias, y) || !is_bias(bias) || bias.view.dtype != y.view.dtype)
      continue;
    if (!uses.may_follow(s, reader)) continue;
    const Operand w = transposed(plan.in(plan.steps[s], 1));
    Operand out = plan.out(add);
    Launch launch = plan.steps[s].launch;
    launch.kernel = &linear_forward().kernel, launch.table = &linear_forward(), launch.inputs = 3;
    launch.ints[0] = 0;
    uses.merge(s, reader, launch, {out, x, w, as_vector(bias)});
    const int next = uses.only_reader(s);
    const int activation = next < 0 ? 0 : activation_of(plan, plan.steps[next], out);
    if (!activation || !uses.may_follow(s, next)) continue;
    launch.ints[0] = activation;
    out = plan.out(plan.steps[next]);
    uses.merge(s, next, launch, {out, x, w, as_vector(bias)});
  }
}

void fuse_head(Plan& plan, bool (*fits)(int64_t rows, int64_t classes, int64_t k)) {
  Uses uses(plan);
  for (int s = 0; s < int(plan.steps.size()); ++s) {
    const Step& layer = plan.steps[s];
    if (uses.merged(s) || layer.launch.kernel != &linear_forward().kernel || layer.launch.ints[0]) continue;
    const Operand logits = plan.out(layer);
    if (logits.view.ndim != 2 || logits.view.shape[1] > kMostHeadClasses || !is_wide(logits.view)) continue;
    if (Precision(layer.attribution.precision) != Precision::exact) continue;
    const std::vector<Operand> of_layer(plan.operands.begin() + layer.operand + 1,
                                        plan.operands.begin() + layer.operand + 1 + layer.launch.inputs);
    if (!fits(logits.view.shape[0], logits.view.shape[1], of_layer[0].view.shape[1])) continue;
    for (int t = s + 1; t < int(plan.steps.size()); ++t) {
      const Step& loss = plan.steps[t];
      if (loss.launch.kernel != &cross_entropy_total_with_gradient || !same_view(plan.in(loss, 1), logits)) continue;
      if (!uses.may_follow(s, t)) break;
      Launch launch = loss.launch;
      launch.kernel = &head, launch.outputs = 3, launch.inputs = 2 + layer.launch.inputs;
      std::vector<Operand> operands = {plan.out(loss, 0), plan.out(loss, 1), logits, plan.in(loss, 0), plan.in(loss, 2)};
      operands.insert(operands.end(), of_layer.begin(), of_layer.end());
      uses.merge(s, t, launch, operands);
      plan.steps[s].checks = 1;
      break;
    }
  }
}

namespace {

// True if a step of [first, last) touches memory of the operand; with `writes`, only if one writes to it.
bool touched(Plan& plan, int first, int last, const Operand& operand, bool writes) {
  bool found = false;
  for (int s = first; s < last && !found; ++s)
    each_operand(plan, plan.steps[s], [&](const Operand& other, bool written) {
      found = found || ((written || !writes) && overlap(other, operand));
    });
  return found;
}

// Returns the step that computes the block which step `copy` copies, if it can write to the copy's target. Otherwise returns -1.
// The target may be written early if no step in between reads it, and none can fail.
int source_of(Plan& plan, const std::vector<std::vector<int>>& touching, int copy) {
  const Operand &target = plan.out(plan.steps[copy]), &source = plan.in(plan.steps[copy]);
  const int block = source.location.block;
  if (target.location.block >= 0 || !target.view.contiguous() || target.view.dtype != source.view.dtype) return -1;
  if (!is_whole_block(plan, source) || plan.blocks[block].kind != BlockKind::arena) return -1;
  const std::vector<int>& steps = touching[block];
  for (const int s : steps)
    if (!is_elementwise(plan, plan.steps[s]) || (s != steps[0] && plan.out(plan.steps[s]).location.block == block)) return -1;
  const Step& first = plan.steps[steps[0]];
  if (steps[0] >= copy || !is_whole_block(plan, plan.out(first)) || plan.out(first).location.block != block) return -1;
  bool fits = plan.out(first).view.dtype == target.view.dtype;
  each_operand(plan, first, [&](const Operand& operand, bool) {
    fits = fits && (!overlap(operand, target) ||
                    (operand.view.data == target.view.data && operand.view.contiguous() &&
                     operand.view.bytes() == target.view.bytes() && operand.view.dtype == target.view.dtype));
  });
  for (int s = steps[0] + 1; s < copy; ++s) fits = fits && is_elementwise(plan, plan.steps[s]);
  fits = fits && !touched(plan, steps[0] + 1, copy, target, false) && !touched(plan, copy + 1, steps.back(), target, true);
  return fits ? steps[0] : -1;
}

}  // namespace

void write_in_place(Plan& plan) {
  std::vector<std::vector<int>> touching(plan.blocks.size());  // for each block the steps that touch it
  for (int s = 0; s < int(plan.steps.size()); ++s)
    each_operand(plan, plan.steps[s], [&](const Operand& operand, bool) {
      const int block = operand.location.block;
      if (block >= 0 && (touching[block].empty() || touching[block].back() != s)) touching[block].push_back(s);
    });
  std::vector<bool> left_out(plan.steps.size());
  for (int s = 0; s < int(plan.steps.size()); ++s) {
    if (plan.steps[s].launch.kernel->run != copy) continue;
    const Operand target = plan.out(plan.steps[s]);
    const int first = source_of(plan, touching, s), block = plan.in(plan.steps[s]).location.block;
    if (first < 0) continue;
    for (const int t : touching[block])
      each_operand(plan, plan.steps[t], [&](Operand& operand, bool) {
        if (operand.location.block != block) return;
        operand.view.data = target.view.data + operand.location.offset;
        operand.location = target.location;
      });
    plan.steps[first].names.insert(plan.steps[first].names.end(), plan.steps[s].names.begin(), plan.steps[s].names.end());
    left_out[s] = true;
  }
  std::vector<Step> kept;
  for (size_t s = 0; s < plan.steps.size(); ++s)
    if (!left_out[s]) kept.push_back(std::move(plan.steps[s]));
  plan.steps = std::move(kept);
}

namespace {

// Lets step s accumulate output k, a product, into the term that the only reader of the product adds it to.
bool accumulate(Plan& plan, Uses& uses, int s, int k) {
  const Operand product = plan.out(plan.steps[s], k);
  const int reader = uses.only_reader(s, k);
  if (reader < 0 || !is_wide(product.view) || !is_named(plan.steps[reader], "add")) return false;
  const Step& add = plan.steps[reader];
  const int other = same_view(plan.in(add, 0), product) ? 1 : 0;
  const Operand before = plan.in(add, other), sum = plan.out(add);
  if (!same_view(plan.in(add, 1 - other), product) || !is_whole_block(plan, before) || !is_whole_block(plan, sum)) return false;
  const int64_t bytes = product.view.bytes();
  if (before.view.bytes() != bytes || sum.view.bytes() != bytes || before.location.block == product.location.block)
    return false;
  if (!uses.sum_in_place(before, sum, s, reader) || !uses.may_follow(s, reader)) return false;
  Launch launch = plan.steps[s].launch;
  launch.ints[1] |= int64_t{1} << k;
  std::vector<Operand> operands;
  for (int i = 0; i < launch.outputs + launch.inputs; ++i) operands.push_back(plan.operand(plan.steps[s], i));
  operands[k] = plan.out(plan.steps[reader]);
  operands[k].view = product.view;
  uses.merge(s, reader, launch, operands);
  return true;
}

}  // namespace

void fuse_accumulation(Plan& plan) {
  Uses uses(plan);
  for (int s = 0; s < int(plan.steps.size()); ++s) {
    if (uses.merged(s)) continue;
    const bool layer = plan.steps[s].launch.kernel->run == linear_pullback;
    const int products = layer ? 2 : is_matrix_product(plan, plan.steps[s]) ? 1 : 0;
    for (int k = 0; k < products; ++k) accumulate(plan, uses, s, k);
  }
}

}  // namespace pb::kernels
