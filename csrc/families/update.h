// Optimizer updates: one launch for all tensors, with the functors of math/update.h.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

constexpr int kMaxSlots = 3;

// What the bindings know of an update. The work of one element, with p += delta, was measured by running the functor on the
// counting scalar.
//
// Operands of an update of `entries` tensors: the weights, then the entries of each slot, then the deltas (data null
// where nobody asked), then the control block; inputs: the gradients (data null: the entry is left alone). All but the
// gradients are flat and contiguous; slots of half precision weights are float32.
// ints: entries, preview (deltas are written and nothing else). reals: the hyperparameters. table: the Update.
struct Update {
  Kernel kernel;
  int slots;
  Counts counts;
};
void update_cost(const Launch& launch, Cost& cost);

// hyper: momentum, dampening, weight decay, nesterov.
const Update& choose_sgd(const double* hyper);
// hyper: beta1, beta2, eps, weight decay, decoupled.
const Update& choose_adam(const double* hyper);

// out: the control block. in: the gradients (data null: left out). reals: the largest norm that is left as it is.
void clip_norm(const Launch& launch);
void clip_norm_cost(const Launch& launch, Cost& cost);

// out: the control block. ints: the first number to change, and how many. reals: their new values.
void write_control(const Launch& launch);
void write_control_cost(const Launch& launch, Cost& cost);

}  // namespace pb::kernels
