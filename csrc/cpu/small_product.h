// Products of matrices of which one fits the L1 and L2 caches.
#pragma once
#include "cpu/matmul.h"
#include "cpu/tile.h"
#include "math/counts.h"

namespace pb::cpu {

// True if the product has at most 2^26 multiply-adds, and a panel of b fits into the L2 cache.
inline bool fits_small_product(int64_t m, int64_t n, int64_t k) { return k <= kTileDepth && m * n * k <= int64_t{1} << 26; }

// True if BLAS is faster, and allowed (kernels::everywhere): one of the factors is a vector, or has few rows that are contiguous along
// k, so that packing the other factor would be most of the work.
bool suits_blas(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b);

// Computes out (m, n) = a (m, k) @ b (k, n). Adds the content of out if `add`, and `bias` (n,) to each row unless it is null.
// Returns false and does nothing if k is 0 or larger than kTileDepth, or if the product suits BLAS. T is float or double.
template <class T>
bool small_product(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out, bool add = false);
// Sets `work` to the work of small_product. Returns false if small_product would.
template <class T>
bool small_product_work(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, bool bias, bool add, Counts& work);

// Computes out (m, n) = a (m, k) @ b (k, n) in the tiles of small_product, which run as they are: for factors that are used many
// times, and that were laid out for it. All are contiguous; n is a multiple of kTileColumns, and k from 1 to kTileDepth.
template <class T> constexpr int64_t kTileColumns = 2 * kWidth<T>;
template <class T> void tile_product(int64_t m, int64_t n, int64_t k, const T* a, const T* b, T* out);
template <class T> Counts tile_product_work(int64_t m, int64_t n, int64_t k);

}  // namespace pb::cpu
