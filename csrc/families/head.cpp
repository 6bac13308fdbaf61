// The head of a classifier, as the launches that it stands for.
#include "families/head.h"

#include <algorithm>

#include "families/executed.h"
#include "families/matmul.h"
#include "families/rows.h"

namespace pb::kernels {
namespace {

void head_cost(const Launch& launch, Cost& cost) {
  const HeadParts parts(launch);
  Cost of_loss;
  parts.layer.kernel->cost(parts.layer, cost);
  parts.loss.kernel->cost(parts.loss, of_loss);
  cost.add(of_loss, 1);
}

}  // namespace

HeadParts::HeadParts(const Launch& head)
    : of_layer{head.out(2), head.in(2), head.in(3), head.inputs > 4 ? head.in(4) : View{}},
      of_loss{head.out(0), head.out(1), head.in(0), head.out(2), head.in(1)},
      layer{&linear_forward().kernel, 1, head.inputs - 2, of_layer, {}, {}, &linear_forward()},
      loss{&cross_entropy_total_with_gradient, 2, 3, of_loss, {}, {}, nullptr} {
  std::copy_n(head.ints, kMaxInts, loss.ints), std::copy_n(head.reals, kMaxReals, loss.reals);
}

const Kernel head{"head", run_head, head_cost, executed_head};

}  // namespace pb::kernels
