// Products by tensor cores of float16 and bfloat16, and of float32 rounded to these.
#include "cuda/gemm_cores.cuh"

namespace pb::cuda {

Tiles half_tiles(DType dtype, kernels::Precision precision) {
  if (dtype == DType::bf16) return all_core_tiles<Bf16, uint16_t>();
  if (dtype == DType::f16) return all_core_tiles<F16, uint16_t>();
  return precision == kernels::Precision::bf16 ? all_core_tiles<Bf16, float>() : all_core_tiles<F16, float>();
}

}  // namespace pb::cuda
