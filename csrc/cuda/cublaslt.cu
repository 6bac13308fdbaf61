// NVIDIA's library for large products: not yet.
#include "cuda/cublaslt.h"
namespace pb::cuda {
bool multiply_by_library(const Product&) { return false; }
}  // namespace pb::cuda
