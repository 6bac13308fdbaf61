// Products of small matrices, for which the preparations of BLAS take longer than the multiplication.
#pragma once
#include "cpu/matmul.h"
#include "cpu/tile.h"
#include "math/counts.h"

namespace pb::cpu {

// True if the product has at most 2^26 multiply-adds, and a panel of b fits into the L2 cache.
inline bool fits_small_product(int64_t m, int64_t n, int64_t k) { return k <= kTileDepth && m * n * k <= int64_t{1} << 26; }

// Computes out (m, n) = a (m, k) @ b (k, n). Adds the content of out if `add`, and `bias` (n,) to each row unless it is null.
// Returns false and does nothing if k is 0 or larger than kTileDepth, or if BLAS is faster, which depends on the shapes and on which
// factors are transposed. If results must be the same everywhere, BLAS is no choice. T is float or double.
template <class T>
bool small_product(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out, bool add = false);
// Sets `work` to the work of small_product without `add`. Returns false if small_product would.
template <class T>
bool small_product_work(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, bool bias, Counts& work);

}  // namespace pb::cpu
