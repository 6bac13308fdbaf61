// Permutes the lanes of vectors.
#pragma once

namespace pb::cpu {

// Returns the lanes of a and b with these numbers, which count through a and then through b.
template <int... K, class V> inline __attribute__((always_inline)) V pick_lanes(V a, V b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, K...);
#else  // g++ has the function above only from version 12 on
  return __builtin_shuffle(a, b, decltype(a == b){K...});
#endif
}

}  // namespace pb::cpu
