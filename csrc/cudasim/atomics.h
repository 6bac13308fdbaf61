// Atomics on global and shared memory. They are also atomic between blocks that run at the same time.
#pragma once

#include <cstring>
#include <type_traits>

#include "cudasim/block.h"

namespace cudasim {

template <class T> struct Plain {
  using type = T;
};
template <class T> using Value = typename Plain<T>::type;  // T is not deduced from a parameter of this type

// Atomically replaces *p by change(*p), and returns the old value.
template <class T, class Change> T atomic_change(T* p, Change change) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "atomics are for types of 2, 4 and 8 bytes");
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) fail("an atomic on a misaligned address");
  Block::running().maybe_yield();
  T old, now;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do {
    now = change(old);
  } while (!__atomic_compare_exchange(p, &old, &now, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return old;
}

template <class T> T sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return T(U(a) + U(b));  // unsigned, because the sum may wrap around
  } else {
    return a + b;
  }
}

}  // namespace cudasim

template <class T> T atomicAdd(T* p, cudasim::Value<T> value) {
  return cudasim::atomic_change(p, [=](T old) { return cudasim::sum<T>(old, value); });
}
template <class T> T atomicMax(T* p, cudasim::Value<T> value) {
  return cudasim::atomic_change(p, [=](T old) { return old < value ? value : old; });
}
template <class T> T atomicCAS(T* p, cudasim::Value<T> expected, cudasim::Value<T> value) {
  return cudasim::atomic_change(p, [=](T old) { return std::memcmp(&old, &expected, sizeof old) == 0 ? value : old; });
}
