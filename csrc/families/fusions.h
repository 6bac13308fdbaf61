// Launches of a plan that one kernel does together: but for fuse_accumulation with every rounding of the two.
#pragma once
#include "launch/rewrite.h"

namespace pb::kernels {

// A loss and its pullback: one exponential for each logit.
void fuse_cross_entropy(Plan& plan);
// A product, the bias that is added to it, and an activation: a linear layer. Only products (m, k) @ (k, n) for which
// keeps_bits(m, n, k): that have the same bits in a layer.
void fuse_linear(Plan& plan, bool (*keeps_bits)(int64_t m, int64_t n, int64_t k));
// A sum of a product and what was there before: gradients of what is used twice. Rounds in another order.
void fuse_accumulation(Plan& plan);

}  // namespace pb::kernels
