// Each function replaces launches of a plan by one kernel. All but fuse_accumulation keep every rounding of the launches.
#pragma once
#include "families/matmul.h"
#include "launch/rewrite.h"

namespace pb::kernels {

// Fuses a loss and its pullback. In a cross entropy both then share one exponential per logit.
void fuse_losses(Plan& plan);
// Fuses a product, the bias that is added to it and an activation into a linear layer. A product (m, k) @ (k, n) is fused only
// if keeps_bits(dtype, precision, m, n, k) is true: if it has the same bits in a layer.
void fuse_linear(Plan& plan, bool (*keeps_bits)(DType dtype, Precision precision, int64_t m, int64_t n, int64_t k));
// Fuses a linear layer without an activation, of few classes, and a loss of its result that was fused with its pullback. Only layers
// are fused that do not round their factors, and for which fits(rows, classes, k) is true: if the head's kernel keeps the bits of
// their products.
void fuse_head(Plan& plan, bool (*fits)(int64_t rows, int64_t classes, int64_t k));
// Lets an elementwise op write to the memory into which its result is copied by a later launch, such as a parameter that is assigned.
// The copy is left out.
void write_in_place(Plan& plan);
// Lets a product accumulate into its other summand, as for the gradient of a tensor used twice. Rounds in another order.
void fuse_accumulation(Plan& plan);

}  // namespace pb::kernels
