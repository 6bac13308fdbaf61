// Dense products on the CPU: OpenBLAS for one tile, the pool of this backend for many.
#pragma once

#include <cstdint>

namespace pb::cpu {

// C = alpha * op(A) @ op(B) + beta * C, row-major; op transposes where ta or tb says so. C is (m, n), op(A) is (m, k),
// op(B) is (k, n); ld* is the distance between rows as stored. With beta = 0, C need not be initialised. The same bits
// every time for one shape, one thread_count() and one machine. Throws std::length_error past 2^31 - 1 columns.
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc);
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda, const double* b,
          int64_t ldb, double beta, double* c, int64_t ldc);

const char* blas_core();    // the kernels OpenBLAS chose for this CPU, e.g. "SkylakeX"
const char* blas_config();  // its version and how it was built

}  // namespace pb::cpu
