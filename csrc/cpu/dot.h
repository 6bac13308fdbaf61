// The product of two long vectors. It is one sum, whose blocks (families/order.h) run side by side, one per vector lane.
#pragma once
#include <algorithm>

#include "cpu/vector.h"
#include "families/order.h"

namespace pb::cpu {

// Returns the sum over one block of products.
template <class T> T dot_of_block(int64_t n, const T* a, const T* b) {
  T sum = 0;
  for (int64_t l = 0; l < n; ++l) sum = multiply_add_number(a[l], b[l], sum);
  return sum;
}

// Writes the sums of kWidth whole blocks to `sums`. Squares of both operands are transposed, so that each lane has another block.
template <class T> void dot_of_blocks(const T* a, const T* b, T* sums) {
  constexpr int64_t kBlock = kernels::kOrderBlock;
  Vector<T> sum{};
  for (int64_t l = 0; l < kBlock; l += kWidth<T>) {
    Vector<T> left[kWidth<T>], right[kWidth<T>];
    for (int j = 0; j < kWidth<T>; ++j) left[j] = load_vector(a + j * kBlock + l), right[j] = load_vector(b + j * kBlock + l);
    turn_square<T>(left), turn_square<T>(right);
    for (int j = 0; j < kWidth<T>; ++j) sum = multiply_add<T>(left[j], right[j], sum);
  }
  store_vector(sums, sum);
}

// Returns a @ b for contiguous vectors of k elements. `sums` has room for a number per block.
template <class T> T dot(int64_t k, const T* a, const T* b, T* sums) {
  constexpr int64_t kBlock = kernels::kOrderBlock;
  const int64_t blocks = kernels::order_blocks(k);
  int64_t done = 0;
  for (; (done + kWidth<T>)*kBlock <= k; done += kWidth<T>) dot_of_blocks(a + done * kBlock, b + done * kBlock, sums + done);
  for (; done < blocks; ++done)
    sums[done] = dot_of_block(std::min(kBlock, k - done * kBlock), a + done * kBlock, b + done * kBlock);
  for (int64_t apart = 1; apart < blocks; apart *= 2)
    for (int64_t i = 0; i + apart < blocks; i += 2 * apart) sums[i] += sums[i + apart];
  return sums[0];
}

}  // namespace pb::cpu
