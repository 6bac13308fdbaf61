// Many products of a few elements each.
#pragma once
#include "cuda/gemm.h"

namespace pb::cuda {

// A thread for every element. False where another way is better.
bool multiply_tiny(const Product& product);

}  // namespace pb::cuda
