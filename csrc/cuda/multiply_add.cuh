// Adds a term to a sum of products. The work of such terms is stated as fused multiply-adds, and that of m::fma, which formulas use, as
// a multiplication and an addition.
#pragma once
#include "cuda/runtime.h"

namespace pb::cuda {

__device__ inline void multiply_add(float& sum, float a, float b) { sum = fmaf(a, b, sum); }
__device__ inline void multiply_add(double& sum, double a, double b) { sum = fma(a, b, sum); }
__device__ inline void multiply_add(uint32_t& sum, uint32_t a, uint32_t b) { sum += a * b; }
__device__ inline void multiply_add(uint64_t& sum, uint64_t a, uint64_t b) { sum += a * b; }

}  // namespace pb::cuda
