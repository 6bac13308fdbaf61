// Products of small matrices, for which what BLAS does before it multiplies takes longer than to multiply.
#pragma once
#include "cpu/matmul.h"

namespace pb::cpu {

// out (m, n) = a (m, k) @ b (k, n), plus `bias` (n,) to each row where it is given. False, and nothing is done, where BLAS
// is the better way: a function of the shape alone. T is float or double.
template <class T>
bool small_product(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out);

}  // namespace pb::cpu
