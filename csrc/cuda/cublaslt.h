// NVIDIA's library for large products, if the machine has it: found at run time, and never needed.
#pragma once
#include "cuda/gemm.h"

namespace pb::cuda {

// False where the library is missing or has no way to do it: then our own kernels do.
bool multiply_by_library(const Product& product);

}  // namespace pb::cuda
