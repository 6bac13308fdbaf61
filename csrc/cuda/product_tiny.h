// Many products of a few elements each.
#pragma once
#include "cuda/gemm.h"

namespace pb::cuda {

// Whether a thread for every element is the best way.
bool is_tiny(const Product& product);
void multiply_tiny(const Product& product);

}  // namespace pb::cuda
