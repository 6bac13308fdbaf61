// Counted, the scalar type on which the counting build instantiates kernels. It has the size and the values of T, and counts every
// operation on it.
#pragma once
#include <cmath>
#include <limits>
#include <type_traits>

#include "math/half.h"

namespace pb::count {

// Count one operation. Any thread may call them. They are defined in watch.cpp, whose own memory accesses are not watched.
void note_add();
void note_multiply();
void note_fused();
void note_special();

// True for types of numbers that do not count: numbers of the host, and of half precision, which is only a storage format.
template <class X>
constexpr bool is_plain = std::is_integral_v<X> || std::is_same_v<X, float> || std::is_same_v<X, double> ||
                          std::is_same_v<X, float16> || std::is_same_v<X, bfloat16>;
template <class X> using if_plain = std::enable_if_t<is_plain<X>, int>;

// The rules are those of math/counting.h: +, - and negation are additions, division is a special operation, comparisons and
// conversions are free. Operations that the compiler evaluates do not count.
#define PB_NOTED(op, note)                                                                                      \
  friend constexpr WatchedScalar operator op(const WatchedScalar& a, const WatchedScalar& b) {                  \
    if (!__builtin_is_constant_evaluated()) note();                                                             \
    return WatchedScalar(a.value op b.value);                                                                   \
  }                                                                                                             \
  template <class X, if_plain<X> = 0> friend constexpr WatchedScalar operator op(const WatchedScalar& a, X b) { \
    return a op WatchedScalar(b);                                                                               \
  }                                                                                                             \
  template <class X, if_plain<X> = 0> friend constexpr WatchedScalar operator op(X a, const WatchedScalar& b) { \
    return WatchedScalar(a) op b;                                                                               \
  }                                                                                                             \
  template <class X> constexpr WatchedScalar& operator op##=(X b) { return *this = *this op WatchedScalar(b); }
#define PB_COMPARED(op)                                                                                            \
  friend constexpr bool operator op(const WatchedScalar& a, const WatchedScalar& b) { return a.value op b.value; } \
  template <class X, if_plain<X> = 0> friend constexpr bool operator op(const WatchedScalar& a, X b) {             \
    return a.value op T(b);                                                                                        \
  }                                                                                                                \
  template <class X, if_plain<X> = 0> friend constexpr bool operator op(X a, const WatchedScalar& b) { return T(a) op b.value; }

template <class T> struct WatchedScalar {
  T value;

  WatchedScalar() = default;
  // Written out and always inlined, not defaulted: an out-of-line copy could read or write memory without the watcher seeing it.
  PB_HD constexpr WatchedScalar(const WatchedScalar& x) : value(x.value) {}
  PB_HD constexpr WatchedScalar& operator=(const WatchedScalar& x) { return value = x.value, *this; }
  template <class X, if_plain<X> = 0> PB_HD constexpr WatchedScalar(const X& x) : value(T(x)) {}
  template <class U> PB_HD constexpr WatchedScalar(const WatchedScalar<U>& x) : value(T(x.value)) {}
  template <class X, if_plain<X> = 0> PB_HD explicit constexpr operator X() const { return X(value); }

  PB_NOTED(+, note_add)
  PB_NOTED(-, note_add)
  PB_NOTED(*, note_multiply)
  PB_NOTED(/, note_special)
  friend constexpr WatchedScalar operator+(const WatchedScalar& a) { return a; }
  friend constexpr WatchedScalar operator-(const WatchedScalar& a) {
    if (!__builtin_is_constant_evaluated()) note_add();
    return WatchedScalar(-a.value);
  }
  PB_COMPARED(==)
  PB_COMPARED(!=)
  PB_COMPARED(<)
  PB_COMPARED(<=)
  PB_COMPARED(>)
  PB_COMPARED(>=)
};
#undef PB_NOTED
#undef PB_COMPARED

using Float = WatchedScalar<float>;
using Double = WatchedScalar<double>;
static_assert(sizeof(Float) == 4 && sizeof(Double) == 8 && std::is_trivially_default_constructible_v<Float>);

template <class T> WatchedScalar<T> fused(const WatchedScalar<T>& a, const WatchedScalar<T>& b, const WatchedScalar<T>& c) {
  note_fused();
  return std::fma(a.value, b.value, c.value);
}
template <class T> WatchedScalar<T> special(T value) {
  note_special();
  return WatchedScalar<T>(value);
}

}  // namespace pb::count

template <class T> struct std::is_trivially_copyable<pb::count::WatchedScalar<T>> : std::true_type {};
template <class T> struct std::is_arithmetic<pb::count::WatchedScalar<T>> : std::true_type {};
template <class T> struct std::is_floating_point<pb::count::WatchedScalar<T>> : std::true_type {};
template <class T> struct std::numeric_limits<pb::count::WatchedScalar<T>> : std::numeric_limits<T> {
  using Number = pb::count::WatchedScalar<T>;
  static constexpr Number infinity() { return std::numeric_limits<T>::infinity(); }
  static constexpr Number quiet_NaN() { return std::numeric_limits<T>::quiet_NaN(); }
  static constexpr Number lowest() { return std::numeric_limits<T>::lowest(); }
  static constexpr Number max() { return std::numeric_limits<T>::max(); }
};
