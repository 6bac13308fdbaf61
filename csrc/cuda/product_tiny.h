// Batches of products with few elements each.
#pragma once
#include "cuda/gemm.h"

namespace pb::cuda {

// True if one thread per element is the fastest way to compute the product.
bool is_tiny(const Product& product);
void multiply_tiny(const Product& product);

}  // namespace pb::cuda
