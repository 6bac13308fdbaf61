// Launches of a plan that one kernel does together, with every rounding of the two.
#pragma once
#include "launch/rewrite.h"

namespace pb::kernels {

// A loss and its pullback: one exponential for each logit.
void fuse_cross_entropy(Plan& plan);
// A product, the bias that is added to it, and an activation: a linear layer.
void fuse_linear(Plan& plan);

}  // namespace pb::kernels
