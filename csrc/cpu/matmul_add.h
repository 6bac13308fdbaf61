// A product added to what is there: the sum of gradients without an array between.
#pragma once
#include "launch/rewrite.h"

namespace pb::cpu {

// Makes a product, and the sum that it is a part of, one launch with beta = 1: rounds in another order.
void fuse_accumulation(Plan& plan);

}  // namespace pb::cpu
