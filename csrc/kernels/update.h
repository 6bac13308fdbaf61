// Optimizer updates: one launch for all tensors, with the rules of math/update.h.
#pragma once
#include <vector>

#include "launch/door.h"

namespace pb::kernels {

constexpr int kMaxSlots = 3;

// What the bindings and the cost formula know of a row of math/update.def.
//
// Operands of an update of `entries` tensors: the weights, then the entries of each slot, then the deltas (data is null for a delta
// that was not asked for), then the control block. Inputs: the gradients (data is null for an entry without a gradient, which stays
// as it is). All operands except the gradients are flat and contiguous. Slots of half precision weights are float32.
// ints: entries, preview (1: the deltas are written, and nothing else). reals: the hyper-parameters. table: the Update.
struct Update {
  Kernel kernel;
  int slots, hypers;
  Counts counts;  // the work of one element, p += delta included, measured by running the rule on the counting scalar
};
void update_cost(const Launch& launch, Cost& cost);

// One entry per row, in their order. Each backend defines this.
const std::vector<const Update*>& updates();

// out: the control block. in: the gradients (data is null for a missing one). reals: the largest norm that is left unscaled.
void clip_norm(const Launch& launch);
void clip_norm_cost(const Launch& launch, Cost& cost);

// out: the control block. ints: the index of the first number to change, and how many change. reals: their new values.
void write_control(const Launch& launch);
void write_control_cost(const Launch& launch, Cost& cost);

}  // namespace pb::kernels
