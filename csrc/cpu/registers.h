// The vector registers of the SIMD level that is compiled for, and operations that take one instruction for all lanes.
#pragma once
#include <cstdint>
#include <utility>

#include "cpu/shuffle.h"
#include "math/bits.h"
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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
// Returns n, rounded up to whole vectors.
template <class T> constexpr int64_t whole(int64_t n) { return (n + kWidth<T> - 1) / kWidth<T> * kWidth<T>; }

// Returns x in every lane. GCC's vector extension has no other expression for it.
template <class T> inline __attribute__((always_inline)) Vector<T> broadcast(T x) { return x - Vector<T>{}; }

// Returns yes or no in each lane, by the lane's condition.
template <class T>
inline __attribute__((always_inline)) Vector<T> choose(typename Register<T>::Ints condition, Vector<T> yes, Vector<T> no) {
  return condition ? yes : no;
}

// True if the condition is true in any lane.
template <class T> inline __attribute__((always_inline)) bool any_lane(typename Register<T>::Ints condition) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)condition, (__m512i)condition) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)condition) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_epi8((__m128i)condition) != 0;
#else
  bool found = false;
  for (int i = 0; i < kWidth<T>; ++i) found |= condition[i] != 0;
  return found;
#endif
}

// Returns a0 b0 a1 b1 ... from the first halves of a and b, or from their second halves.
template <class T, bool kSecond, size_t... K>
inline __attribute__((always_inline)) Vector<T> interleave(Vector<T> a, Vector<T> b, std::index_sequence<K...>) {
  return pick_lanes<(int(K) / 2 + (kSecond ? kWidth<T> / 2 : 0) + (K % 2 ? kWidth<T> : 0))...>(a, b);
}
template <class T> inline __attribute__((always_inline)) Vector<T> interleave_low(Vector<T> a, Vector<T> b) {
  return interleave<T, false>(a, b, std::make_index_sequence<kWidth<T>>());
}
template <class T> inline __attribute__((always_inline)) Vector<T> interleave_high(Vector<T> a, Vector<T> b) {
  return interleave<T, true>(a, b, std::make_index_sequence<kWidth<T>>());
}

// Returns a0 a2 a4 ... b0 b2 b4 ....
template <class T, size_t... K>
inline __attribute__((always_inline)) Vector<T> even_lanes(Vector<T> a, Vector<T> b, std::index_sequence<K...>) {
  return pick_lanes<int(2 * K)...>(a, b);
}
template <class T> inline __attribute__((always_inline)) Vector<T> even_lanes(Vector<T> a, Vector<T> b) {
  return even_lanes<T>(a, b, std::make_index_sequence<kWidth<T>>());
}

// Returns a b + c, rounded once if the SIMD level has an instruction for it. Level v2 has none, so its products have other bits.
template <class T>
inline __attribute__((always_inline)) Vector<T> multiply_add(Vector<T> a, Vector<T> b, Vector<T> c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_fmadd_ps(a, b, c);
  else return _mm512_fmadd_pd(a, b, c);
#elif defined(__FMA__)
  if constexpr (sizeof(T) == 4) return _mm256_fmadd_ps(a, b, c);
  else return _mm256_fmadd_pd(a, b, c);
#elif defined(__aarch64__)
  if constexpr (sizeof(T) == 4) return vfmaq_f32(c, a, b);
  else return vfmaq_f64(c, a, b);
#else
  return a * b + c;
#endif
}

// The same for one number.
template <class T> inline __attribute__((always_inline)) T multiply_add_number(T a, T b, T c) { return m::fma(a, b, c); }

}  // namespace pb::cpu
