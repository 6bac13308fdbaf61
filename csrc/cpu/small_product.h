// Products of small matrices, for which what BLAS does before it multiplies takes longer than to multiply.
#pragma once
#include "cpu/matmul.h"
#include "math/counts.h"

namespace pb::cpu {

// At most 2^26 multiply-adds, and a panel of b stays in the second-level cache.
inline bool fits_small_product(int64_t m, int64_t n, int64_t k) { return k <= 1024 && m * n * k <= int64_t{1} << 26; }

// out (m, n) = a (m, k) @ b (k, n), plus what out holds if `add`, plus `bias` (n,) to each row where it is given. False, and
// nothing is done, where BLAS is the better way: a function of the shape alone. T is float or double.
template <class T>
bool small_product(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out, bool add = false);
// The work of that, to nothing that out holds; false likewise.
template <class T>
bool small_product_work(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, bool bias, Counts& work);

}  // namespace pb::cpu
