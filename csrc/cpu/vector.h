// Loads, stores and transposes vectors of numbers.
#pragma once
#include <cstring>

#include "cpu/registers.h"

namespace pb::cpu {

template <class T> inline __attribute__((always_inline)) Vector<T> load_vector(const T* from) {
  Vector<T> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class T> inline __attribute__((always_inline)) void store_vector(T* to, Vector<T> v) {
  std::memcpy(to, &v, sizeof v);
}

// Returns the first `count` numbers, followed by zeros.
template <class T> inline __attribute__((always_inline)) Vector<T> load_part(const T* from, int64_t count) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), from);
  else return _mm512_maskz_loadu_pd(__mmask8((1u << count) - 1), from);
#else
  alignas(kVectorBytes) T all[kWidth<T>] = {};
  for (int64_t j = 0; j < count; ++j) all[j] = from[j];
  return load_vector(all);
#endif
}
// Stores the first `count` numbers of v.
template <class T> inline __attribute__((always_inline)) void store_part(T* to, Vector<T> v, int64_t count) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), v);
  else _mm512_mask_storeu_pd(to, __mmask8((1u << count) - 1), v);
#else
  for (int64_t j = 0; j < count; ++j) to[j] = v[j];
#endif
}

// Transposes a square of vectors by perfect shuffles, log2(width) times.
template <class T> inline __attribute__((always_inline)) void turn_square(Vector<T> (&v)[kWidth<T>]) {
  constexpr int kHalf = kWidth<T> / 2;
#pragma GCC unroll 4
  for (int width = kWidth<T>; width > 1; width /= 2) {
    Vector<T> next[kWidth<T>];
#pragma GCC unroll 8
    for (int i = 0; i < kHalf; ++i) {
      next[2 * i] = interleave_low<T>(v[i], v[i + kHalf]);
      next[2 * i + 1] = interleave_high<T>(v[i], v[i + kHalf]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth<T>; ++i) v[i] = next[i];
  }
}

}  // namespace pb::cpu
