// Calls LAPACK through its C interface without the interface's own copies and checks: all matrices are column-major.
#include "cpu/lapack.h"

#include <cblas.h>
#include <lapacke.h>

#include <algorithm>

#include "cpu/blas.h"

namespace pb::cpu {

#define PB_LAPACK(T, t)                                                                                                       \
  template <> int Lapack<T>::potrf(char triangle, int n, T* a, int lda) {                                                     \
    const BlasCall running;                                                                                                   \
    return scipy_LAPACKE_##t##potrf_work(LAPACK_COL_MAJOR, triangle, n, a, lda);                                              \
  }                                                                                                                           \
  template <> int Lapack<T>::getrf(int n, T* a, int* pivots) {                                                                \
    const BlasCall running;                                                                                                   \
    return scipy_LAPACKE_##t##getrf_work(LAPACK_COL_MAJOR, n, n, a, n, pivots);                                               \
  }                                                                                                                           \
  template <> void Lapack<T>::getrs(int n, int columns, const T* a, const int* pivots, T* b) {                                \
    const BlasCall running;                                                                                                   \
    scipy_LAPACKE_##t##getrs_work(LAPACK_COL_MAJOR, 'N', n, columns, a, n, pivots, b, n);                                     \
  }                                                                                                                           \
  template <>                                                                                                                 \
  void Lapack<T>::trsm(bool left, bool upper, bool transposed, bool unit, int rows, int columns, const T* a, int lda, T* b,   \
                       int ldb) {                                                                                             \
    const BlasCall running;                                                                                                   \
    scipy_cblas_##t##trsm(CblasColMajor, left ? CblasLeft : CblasRight, upper ? CblasUpper : CblasLower,                      \
                          transposed ? CblasTrans : CblasNoTrans, unit ? CblasUnit : CblasNonUnit, rows, columns, 1, a, lda,  \
                          b, ldb);                                                                                            \
  }                                                                                                                           \
  template <> int64_t Lapack<T>::work_qr(int m, int n, int k) {                                                               \
    T first = 1, second = 1;                                                                                                  \
    scipy_LAPACKE_##t##geqrf_work(LAPACK_COL_MAJOR, m, n, nullptr, std::max(m, 1), nullptr, &first, -1);                      \
    scipy_LAPACKE_##t##orgqr_work(LAPACK_COL_MAJOR, m, std::max(k, 1), k, nullptr, std::max(m, 1), nullptr, &second, -1);     \
    return std::max({int64_t(first), int64_t(second), int64_t(m), int64_t(n), int64_t(1)});                                   \
  }                                                                                                                           \
  template <> void Lapack<T>::geqrf(int m, int n, T* a, T* tau, T* work, int64_t length) {                                    \
    const BlasCall running;                                                                                                   \
    scipy_LAPACKE_##t##geqrf_work(LAPACK_COL_MAJOR, m, n, a, m, tau, work, int(length));                                      \
  }                                                                                                                           \
  template <> void Lapack<T>::orgqr(int m, int n, int k, T* a, const T* tau, T* work, int64_t length) {                       \
    const BlasCall running;                                                                                                   \
    scipy_LAPACKE_##t##orgqr_work(LAPACK_COL_MAJOR, m, n, k, a, m, tau, work, int(length));                                   \
  }                                                                                                                           \
  template <> Lapack<T>::Sizes Lapack<T>::work_syevd(bool vectors, int n) {                                                   \
    T numbers = 1;                                                                                                            \
    int integers = 1;                                                                                                         \
    scipy_LAPACKE_##t##syevd_work(LAPACK_COL_MAJOR, vectors ? 'V' : 'N', 'L', n, nullptr, std::max(n, 1), nullptr, &numbers,  \
                                  -1, &integers, -1);                                                                         \
    return {int64_t(numbers), integers};                                                                                      \
  }                                                                                                                           \
  template <> int Lapack<T>::syevd(bool vectors, int n, T* a, T* w, T* work, int* integers, Sizes sizes) {                    \
    const BlasCall running;                                                                                                   \
    return scipy_LAPACKE_##t##syevd_work(LAPACK_COL_MAJOR, vectors ? 'V' : 'N', 'L', n, a, n, w, work, int(sizes.numbers),    \
                                         integers, int(sizes.integers));                                                      \
  }                                                                                                                           \
  template <> Lapack<T>::Sizes Lapack<T>::work_gesdd(char vectors, int m, int n) {                                            \
    T numbers = 1;                                                                                                            \
    int none = 0;                                                                                                             \
    scipy_LAPACKE_##t##gesdd_work(LAPACK_COL_MAJOR, vectors, m, n, nullptr, m, nullptr, nullptr, m, nullptr, n, &numbers, -1, \
                                  &none);                                                                                     \
    return {int64_t(numbers), 8 * std::min(m, n)};                                                                            \
  }                                                                                                                           \
  template <>                                                                                                                 \
  int Lapack<T>::gesdd(char vectors, int m, int n, T* a, T* s, T* u, T* vt, int rows_of_vt, T* work, int* integers,           \
                       Sizes sizes) {                                                                                         \
    const BlasCall running;                                                                                                   \
    return scipy_LAPACKE_##t##gesdd_work(LAPACK_COL_MAJOR, vectors, m, n, a, m, s, u, m, vt, rows_of_vt, work,                \
                                         int(sizes.numbers), integers);                                                       \
  }                                                                                                                           \
  template struct Lapack<T>;

PB_LAPACK(float, s)
PB_LAPACK(double, d)

}  // namespace pb::cpu
