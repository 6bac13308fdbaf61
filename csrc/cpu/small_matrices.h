// Kernels for batches of small matrices. Each lane of a vector register computes another matrix, so the bits depend neither on the
// number of lanes nor on the other matrices of the batch. Sums run in the order of their index, by fused multiply-adds.
#pragma once
#include "cpu/matrices.h"

namespace pb::cpu {

constexpr int64_t kSmall = 32;          // rows of the largest matrices
constexpr int64_t kSmallColumns = 128;  // of the right-hand sides
inline bool is_small(int64_t n, int64_t columns = 0) { return n <= kSmall && columns <= kSmallColumns; }

// Matrices are row-major. cholesky: y are the lower factors of the symmetric parts of x. The others write x of a x = b to y, where b
// has `columns` columns; they note the faults zero_on_diagonal and singular, and then write NaN.
template <class T> void small_cholesky(int64_t count, int64_t n, const T* x, T* y, Faults& faults);
template <class T>
void small_triangular(int64_t count, int64_t n, int64_t columns, bool upper, bool unit, const T* a, const T* b, T* y,
                      Faults& faults);
template <class T>
void small_solve(int64_t count, int64_t n, int64_t columns, const T* a, const T* b, T* y, Faults& faults);
// Writes the gradients of a and of b, unless they are null, for the cotangent g of the x of a x = b: gb of a^T gb = g, and
// ga = -gb x^T, whose sums run over the columns in order. Both are NaN for a singular matrix. x is read for ga only.
template <class T>
void small_solve_pullback(int64_t count, int64_t n, int64_t columns, const T* a, const T* g, const T* x, T* ga, T* gb);

// See families/executed.h.
void executed_cholesky(const Launch& launch, Counts& work);
void executed_solve_triangular(const Launch& launch, Counts& work);
void executed_solve(const Launch& launch, Counts& work);
void executed_solve_pullback(const Launch& launch, Counts& work);

}  // namespace pb::cpu
