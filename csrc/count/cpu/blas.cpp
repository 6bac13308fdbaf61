// Replaces cpu/blas.cpp in the counting build. Products that the backend leaves to BLAS run in textbook loops here, so that their
// operations count.
#include "cpu/blas.h"

namespace pb::cpu {
namespace {

template <class T>
void product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb, bool add,
             T* c, int64_t ldc) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum = count::fused(ta ? a[l * lda + i] : a[i * lda + l], tb ? b[j * ldb + l] : b[l * ldb + j], sum);
      T& to = c[i * ldc + j];
      to = add ? to + sum : sum;
    }
}

}  // namespace

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float, const float* a, int64_t lda, const float* b, int64_t ldb,
          float beta, float* c, int64_t ldc) {
  product(ta, tb, m, n, k, a, lda, b, ldb, beta != 0, c, ldc);
}

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double, const double* a, int64_t lda, const double* b, int64_t ldb,
          double beta, double* c, int64_t ldc) {
  product(ta, tb, m, n, k, a, lda, b, ldb, beta != 0, c, ldc);
}

const char* blas_core() { return "counted"; }
const char* blas_config() { return "loops that count"; }

}  // namespace pb::cpu
