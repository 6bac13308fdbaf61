// Random numbers as a pure function of (seed, counter): they are the same on every device and in any order of evaluation. On level
// v2, the last bits of normal numbers may differ, because they come from functions (see fma in math/bits.h).
// One call of philox serves one counter. The words that an element uses depend on the shape only, never on the values:
//   float     1 word per element, 4 elements per counter (bernoulli too)
//   double    2 words per element, 2 elements per counter (integers too)
#pragma once
#include "math/scalar.h"

namespace pb::random {

struct Counter {
  uint64_t low, high;  // element / (elements per counter), and the serial number of the call
};
struct Words {
  uint32_t w[4];
};
template <class T> constexpr int kPerCounter = sizeof(T) == 8 ? 2 : 4;
template <class T> struct Numbers {
  T v[kPerCounter<T>];
};

// Philox4x32 with ten rounds: Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
PB_HD Words philox(uint64_t seed, Counter counter) {
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  uint32_t c0 = uint32_t(counter.low), c1 = uint32_t(counter.low >> 32);
  uint32_t c2 = uint32_t(counter.high), c3 = uint32_t(counter.high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xd2511f53u) * c0, p1 = uint64_t(0xcd9e8d57u) * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c1 = uint32_t(p1);
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c3 = uint32_t(p0);
    k0 += 0x9e3779b9u;  // Weyl sequences: the golden ratio, and sqrt(3) - 1
    k1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

PB_HD uint64_t pair(Words words, int k) { return uint64_t(words.w[2 * k + 1]) << 32 | words.w[2 * k]; }

// Returns a number in [0, 1), from the upper 24 or 53 bits: every value is a multiple of the same step, and 1 is never reached.
template <class T> PB_HD T uniform_of(Words words, int k) {
  if constexpr (sizeof(T) == 4) return T(int32_t(words.w[k] >> 8)) * T(0x1p-24);
  else return T(int64_t(pair(words, k) >> 11)) * T(0x1p-53);
}
template <class T> PB_HD Numbers<T> uniform(Words words) {
  Numbers<T> y;
  for (int k = 0; k < kPerCounter<T>; ++k) y.v[k] = uniform_of<T>(words, k);
  return y;
}

// Scales and shifts a number of [0, 1) or of a standard distribution.
template <class T> PB_HD T spread(T u, T low, T width) { return low + width * u; }

// Returns the sine and cosine of 2 pi u for 0 <= u < 1. The reduction to an eighth of a turn is exact.
template <class T> PB_HD m::SinCos<T> sincos_turns(T u) {
  const T q = m::round(T(u * 4)), r = (u - q * T(0.25)) * T(6.283185307179586);
  const T s = m::sin_reduced(r, T(0)), c = m::cos_reduced(r, T(0));
  const bool odd = (q == 1) | (q == 3);
  const T sine = m::select(odd, c, s), cosine = m::select(odd, s, c);
  return {m::select((q == 2) | (q == 3), T(-sine), sine), m::select((q == 1) | (q == 2), T(-cosine), cosine)};
}

// Returns standard normal numbers, made in pairs: Box & Muller, "A note on the generation of random normal deviates" (1958).
template <class T> PB_HD Numbers<T> normal(Words words) {
  const Numbers<T> u = uniform<T>(words);
  Numbers<T> y;
  for (int k = 0; k < kPerCounter<T>; k += 2) {
    const T radius = m::sqrt(T(-2 * m::log(T(1 - u.v[k]))));  // 1 - u is exact, and lies in (0, 1]
    const m::SinCos<T> direction = sincos_turns(u.v[k + 1]);
    y.v[k] = radius * direction.cos;
    y.v[k + 1] = radius * direction.sin;
  }
  return y;
}

// Returns standard normal numbers within [low, high], by the inverse distribution function, which needs no rejection. It is
// accurate for bounds around the mean. If both bounds lie in one tail, the small probability between them limits the resolution.
template <class T> PB_HD Numbers<T> truncated_normal(Words words, T low, T high) {
  const T from = m::erf(T(low * T(0.7071067811865476))), to = m::erf(T(high * T(0.7071067811865476)));
  Numbers<T> y = uniform<T>(words);
  for (int k = 0; k < kPerCounter<T>; ++k) {
    const T z = T(1.4142135623730951) * m::erfinv(T(from + (to - from) * y.v[k]));
    y.v[k] = m::min(m::max(z, low), high);
  }
  return y;
}

// Returns the upper 64 bits of a product. It is computed from 32-bit halves, so no 128-bit type is needed.
PB_HD uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a0 = uint32_t(a), a1 = a >> 32, b0 = uint32_t(b), b1 = b >> 32;
  const uint64_t middle = a1 * b0 + ((a0 * b0) >> 32), rest = a0 * b1 + uint32_t(middle);
  return a1 * b1 + (middle >> 32) + (rest >> 32);
}

// Returns integers in [low, high): 64-bit words scaled to the range (Lemire 2019, without the rejection; the bias is range / 2^64).
PB_HD Numbers<int64_t> randint(Words words, int64_t low, int64_t high) {
  const uint64_t range = uint64_t(high) - uint64_t(low);
  Numbers<int64_t> y;
  for (int k = 0; k < 2; ++k) y.v[k] = int64_t(uint64_t(low) + multiply_high(pair(words, k), range));
  return y;
}

// Returns numbers that are 1 with probability p, and otherwise 0.
PB_HD Numbers<float> bernoulli(Words words, float p) {
  Numbers<float> y = uniform<float>(words);
  for (int k = 0; k < 4; ++k) y.v[k] = y.v[k] < p ? 1.0f : 0.0f;
  return y;
}

}  // namespace pb::random
