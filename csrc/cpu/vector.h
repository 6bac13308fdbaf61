// The vector registers of the SIMD level that is compiled for.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace pb::cpu {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kRegisters = 16;
#else
constexpr int kVectorBytes = 16;
constexpr int kRegisters = 16;
#endif

template <class T> struct Register;
template <> struct Register<float> {
  typedef float Numbers __attribute__((vector_size(kVectorBytes)));
  typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));
};
template <> struct Register<double> {
  typedef double Numbers __attribute__((vector_size(kVectorBytes)));
  typedef int64_t Ints __attribute__((vector_size(kVectorBytes)));
};
template <class T> using Vector = typename Register<T>::Numbers;
template <class T> constexpr int kWidth = kVectorBytes / int(sizeof(T));

template <class T> inline __attribute__((always_inline)) Vector<T> load_vector(const T* from) {
  Vector<T> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class T> inline __attribute__((always_inline)) void store_vector(T* to, Vector<T> v) {
  std::memcpy(to, &v, sizeof v);
}

// The first `count` numbers, and zeros.
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
// The first `count` numbers of v.
template <class T> inline __attribute__((always_inline)) void store_part(T* to, Vector<T> v, int64_t count) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), v);
  else _mm512_mask_storeu_pd(to, __mmask8((1u << count) - 1), v);
#else
  for (int64_t j = 0; j < count; ++j) to[j] = v[j];
#endif
}

// a0 b0 a1 b1 ...: of the first halves of a and b, and of their second halves.
template <class T, size_t... K>
inline __attribute__((always_inline)) Vector<T> interleave(Vector<T> a, Vector<T> b, size_t from, std::index_sequence<K...>) {
  constexpr int kHalf = kWidth<T> / 2;
  return from ? __builtin_shufflevector(a, b, (int(K) / 2 + kHalf + (K % 2 ? kWidth<T> : 0))...)
              : __builtin_shufflevector(a, b, (int(K) / 2 + (K % 2 ? kWidth<T> : 0))...);
}
template <class T> inline __attribute__((always_inline)) Vector<T> interleave_low(Vector<T> a, Vector<T> b) {
  return interleave<T>(a, b, 0, std::make_index_sequence<kWidth<T>>());
}
template <class T> inline __attribute__((always_inline)) Vector<T> interleave_high(Vector<T> a, Vector<T> b) {
  return interleave<T>(a, b, 1, std::make_index_sequence<kWidth<T>>());
}

// The rows of a square become its columns: a perfect shuffle, as often as it takes to halve the width to one.
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

// a b + c, rounded once where the level has an instruction for it: for products, which say so.
template <class T>
inline __attribute__((always_inline)) Vector<T> multiply_add(Vector<T> a, Vector<T> b, Vector<T> c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_fmadd_ps(a, b, c);
  else return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  if constexpr (sizeof(T) == 4) return _mm256_fmadd_ps(a, b, c);
  else return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

}  // namespace pb::cpu
