// Writes the sums of a tile of a product, which are in vector registers, to memory.
#pragma once
#include <algorithm>

#include "cpu/vector.h"

namespace pb::cpu {

// Writes the first `rows` rows and `columns` columns to out, whose rows are `ldc` elements apart. Adds the content of out if `add`,
// and the bias of each column unless `bias` is null.
template <class T, int kRows, int kVectors>
inline __attribute__((always_inline)) void write_tile(Vector<T> (&sum)[kRows][kVectors], T* out, int64_t ldc, int64_t rows,
                                                      int64_t columns, const T* bias, bool add) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t first = v * kWidth<T>, left = std::min<int64_t>(columns - first, kWidth<T>);
    if (left <= 0) return;
    const Vector<T> biases = bias ? load_part(bias + first, left) : Vector<T>{};
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      T* to = out + r * ldc + first;
      Vector<T> y = sum[r][v];
      if (add) y = load_part(to, left) + y;
      if (bias) y += biases;
      if (left == kWidth<T>) store_vector(to, y);
      else store_part(to, y, left);
    }
  }
}

}  // namespace pb::cpu
