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

// Fails if p points to memory of the host: atomics between the GPU and the host need hardware that many machines lack.
void refuse_host_memory(const void* p);

template <class T> T sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return T(U(a) + U(b));  // unsigned, because the sum may wrap around
  } else {
    return a + b;
  }
}

template <class T> T difference(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return T(U(a) - U(b));
}

template <class T> T compare_and_swap(T* p, T expected, T value) {
  return atomic_change(p, [=](T old) { return std::memcmp(&old, &expected, sizeof old) == 0 ? value : old; });
}

}  // namespace cudasim

// Defines an atomic function and its variants for the scopes _block and _system. The last one fails on memory of the host.
#define CUDASIM_ATOMIC(name, ...)                                                               \
  template <class T> T name(T* p, cudasim::Value<T> value) {                                    \
    return cudasim::atomic_change(p, [=]([[maybe_unused]] T old) -> T { return __VA_ARGS__; }); \
  }                                                                                             \
  template <class T> T name##_block(T* p, cudasim::Value<T> value) { return name(p, value); }   \
  template <class T> T name##_system(T* p, cudasim::Value<T> value) {                           \
    cudasim::refuse_host_memory(p);                                                             \
    return name(p, value);                                                                      \
  }

CUDASIM_ATOMIC(atomicAdd, cudasim::sum<T>(old, value))
CUDASIM_ATOMIC(atomicSub, cudasim::difference<T>(old, value))
CUDASIM_ATOMIC(atomicExch, value)
CUDASIM_ATOMIC(atomicMin, value < old ? value : old)
CUDASIM_ATOMIC(atomicMax, old < value ? value : old)
CUDASIM_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
CUDASIM_ATOMIC(atomicDec, old == 0 || old > value ? value : T(old - 1))
CUDASIM_ATOMIC(atomicAnd, T(old& value))
CUDASIM_ATOMIC(atomicOr, T(old | value))
CUDASIM_ATOMIC(atomicXor, T(old ^ value))
#undef CUDASIM_ATOMIC

template <class T> T atomicCAS(T* p, cudasim::Value<T> expected, cudasim::Value<T> value) {
  return cudasim::compare_and_swap<T>(p, expected, value);
}
template <class T> T atomicCAS_block(T* p, cudasim::Value<T> expected, cudasim::Value<T> value) {
  return cudasim::compare_and_swap<T>(p, expected, value);
}
template <class T> T atomicCAS_system(T* p, cudasim::Value<T> expected, cudasim::Value<T> value) {
  cudasim::refuse_host_memory(p);
  return cudasim::compare_and_swap<T>(p, expected, value);
}
