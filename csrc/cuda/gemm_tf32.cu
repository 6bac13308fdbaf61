// Products by tensor cores of float32, rounded to tf32.
#include "cuda/gemm_cores.cuh"

namespace pb::cuda {

Tiles tf32_tiles() { return all_core_tiles<Tf32, float>(); }

}  // namespace pb::cuda
