// Products of matrices that are too large for the L1 and L2 caches.
#pragma once
#include "cpu/matmul.h"
#include "cpu/tile.h"
#include "math/counts.h"

namespace pb::cpu {

// The largest k of a large product. One panel and one block then fill less than half of an L2 cache of 1 MiB.
template <class T> constexpr int64_t kLargeDepth = kTileDepth * 4 / int64_t(sizeof(T));

// Computes out (m, n) = a (m, k) @ b (k, n). Adds the content of out if `add`, and `bias` (n,) to each row unless it is null. Then
// calls finish(count, y), unless it is null, to change every part of a row in place. Returns false and does nothing if k is larger
// than kLargeDepth, or if small_product is faster, which depends on the shape alone. T is float or double.
template <class T>
bool large_product(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const T* bias, T* out,
                   void (*finish)(int64_t, T*) = nullptr, bool add = false);
// Sets `work` to the work of large_product without `finish`. `terms` (a bias, the content of out) are added to each element. Returns
// false if large_product would.
template <class T> bool large_product_work(int64_t m, int64_t n, int64_t k, int terms, Counts& work);

}  // namespace pb::cpu
