// Products by OpenBLAS. Strips of the result are distributed over the threads of this backend.
#pragma once

#include <cstdint>

namespace pb::cpu {

// Computes C = alpha * op(A) @ op(B) + beta * C, row-major. op(A) is A transposed if ta is true, and likewise op(B) with tb. C is
// (m, n), op(A) is (m, k), op(B) is (k, n); ld* is the distance between rows as stored, in elements. If beta is 0, C need not be
// initialised. The bits depend only on the shape and the machine. Throws std::length_error if a row or a row
// distance exceeds 2^31 - 1 elements.
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc);
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda, const double* b,
          int64_t ldb, double beta, double* c, int64_t ldc);

// Exists during a call of OpenBLAS, which takes a working buffer of 32 MiB for each call that runs at the same time, keeps it for later
// calls, and ends the process if there is no memory for it. The constructor waits for other calls if there is no memory for another
// buffer, and throws std::bad_alloc if there is none for the first, or for the thread-local data of OpenBLAS.
class BlasCall {
 public:
  BlasCall();
  ~BlasCall();
  BlasCall(const BlasCall&) = delete;
  BlasCall& operator=(const BlasCall&) = delete;
};

const char* blas_core();    // the kernels that OpenBLAS chose for this CPU, e.g. "SkylakeX"
const char* blas_config();  // the version and the build options of OpenBLAS

}  // namespace pb::cpu
