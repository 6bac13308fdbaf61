// Products of matrices too large for the first two caches.
#pragma once
#include "cpu/matmul.h"
#include "math/counts.h"

namespace pb::cpu {

// out (m, n) = a (m, k) @ b (k, n), plus what out holds if `add`, plus `bias` (n,) to each row where it is given, and
// then finish(count, y) in place for every part of a row where that is given. False, and nothing is done, where small_product or
// BLAS is the better way: a function of the shape alone. The same bits for any number of threads. T is float or double.
template <class T>
bool large_product(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out,
                   void (*finish)(int64_t, T*) = nullptr, bool add = false);
// The work of that, to nothing that out holds and without `finish`; false likewise.
template <class T> bool large_product_work(int64_t m, int64_t n, int64_t k, bool bias, Counts& work);

}  // namespace pb::cpu
