// Transposes strips of a matrix: each column of a strip becomes one vector.
#pragma once
#include <algorithm>

#include "cpu/vector.h"

namespace pb::cpu {

// Calls put(l, v) for each column l of from (rows, columns). The vector v holds the column, and zeros after it; `rows` is at most
// its width.
template <class T, class Put>
inline void turn_strip(int64_t rows, int64_t columns, const T* from, int64_t ld, const Put& put) {
  Vector<T> square[kWidth<T>];
  for (int64_t l = 0; l < columns; l += kWidth<T>) {
    const int64_t count = std::min<int64_t>(kWidth<T>, columns - l);
#pragma GCC unroll 16
    for (int j = 0; j < kWidth<T>; ++j) {
      const T* row = from + j * ld + l;
      square[j] = j >= rows ? Vector<T>{} : count == kWidth<T> ? load_vector(row) : load_part(row, count);
    }
    turn_square<T>(square);
#pragma GCC unroll 16
    for (int j = 0; j < kWidth<T>; ++j)
      if (j < count) put(l + j, square[j]);
  }
}

// Transposes a strip into the rows of `to`.
template <class T>
void turn_strip(int64_t rows, int64_t columns, const T* from, int64_t ld, T* to, int64_t ld_to) {
  turn_strip(rows, columns, from, ld,
             [to, ld_to](int64_t l, const Vector<T>& v) __attribute__((always_inline)) { store_vector(to + l * ld_to, v); });
}

}  // namespace pb::cpu
