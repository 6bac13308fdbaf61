// Operations on numbers of every kind: extremes, signs, division with a remainder, integer powers and shifts.
#pragma once
#include "math/bits.h"

namespace pb::m {

// Returns `gradient`, but 0 instead of NaN if the cotangent g is 0: an infinite or undefined derivative then contributes nothing.
template <class T, if_real<T> = 0> PB_HD T mask_nan_gradient(T g, T gradient) {
  return select((g == 0) & (gradient != gradient), T(0), gradient);
}

// max and min return NaN if either argument is NaN, as in NumPy.
template <class T, if_real<T> = 0> PB_HD T max(T a, T b) { return select((a > b) | (a != a), a, b); }
template <class T, if_real<T> = 0> PB_HD T min(T a, T b) { return select((a < b) | (a != a), a, b); }
template <class T, if_integer<T> = 0> PB_HD T max(T a, T b) { return a > b ? a : b; }
template <class T, if_integer<T> = 0> PB_HD T min(T a, T b) { return a < b ? a : b; }

// The identities of max and min. They are constants, because device code may not call the functions of std::numeric_limits.
template <class T>
constexpr T kLowest = std::numeric_limits<T>::has_infinity ? T(-kInfinity<T>) : std::numeric_limits<T>::lowest();
template <class T> constexpr T kHighest = std::numeric_limits<T>::has_infinity ? kInfinity<T> : std::numeric_limits<T>::max();
template <class T> PB_HD T lowest() { return kLowest<T>; }
template <class T> PB_HD T highest() { return kHighest<T>; }

template <class T, if_real<T> = 0> PB_HD T sign(T x) {  // sign(-0) is 0, and NaN stays NaN
  return select(x > 0, T(1), select(x < 0, T(-1), T(x + 0)));
}
template <class T, if_integer<T> = 0> PB_HD T sign(T x) {
  if constexpr (std::is_unsigned_v<T>) return T(x != 0);
  else return T(x > 0) - T(x < 0);
}

// Integer arithmetic is modulo 2^n. It is done in unsigned types, because signed overflow is undefined behaviour in C++.
template <class T> using if_not_integer = std::enable_if_t<!std::is_integral_v<T>, int>;
template <class T, if_not_integer<T> = 0> PB_HD T add(T a, T b) { return a + b; }
template <class T, if_not_integer<T> = 0> PB_HD T subtract(T a, T b) { return a - b; }
template <class T, if_not_integer<T> = 0> PB_HD T multiply(T a, T b) { return a * b; }
template <class T, if_not_integer<T> = 0> PB_HD T negative(T x) {
  if constexpr (is_real<T>) return from_bits<T>(bits(x) ^ kSignBit<T>);  // a GPU would flush a denormal -x to zero
  else return -x;
}
template <class T, if_integer<T> = 0> PB_HD T add(T a, T b) {
  return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
}
template <class T, if_integer<T> = 0> PB_HD T subtract(T a, T b) {
  return T(std::make_unsigned_t<T>(a) - std::make_unsigned_t<T>(b));
}
template <class T, if_integer<T> = 0> PB_HD T multiply(T a, T b) {
  return T(std::make_unsigned_t<T>(a) * std::make_unsigned_t<T>(b));
}
template <class T, if_integer<T> = 0> PB_HD T negative(T x) { return subtract(T(0), x); }
template <class T, if_integer<T> = 0> PB_HD T abs(T x) {
  if constexpr (std::is_unsigned_v<T>) return x;
  else return x < 0 ? negative(x) : x;
}
template <class T, if_integer<T> = 0> PB_HD T floor(T x) { return x; }
template <class T, if_integer<T> = 0> PB_HD T ceil(T x) { return x; }
template <class T, if_integer<T> = 0> PB_HD T trunc(T x) { return x; }
template <class T, if_integer<T> = 0> PB_HD T round(T x) { return x; }

// Python's a // b and a % b: the quotient is rounded down, and the remainder has the sign of b. As in NumPy, an integer divided by
// 0 gives 0. Division by -1 is a separate case, because it traps for the smallest number.
template <class T, if_integer<T> = 0> PB_HD T floor_divide(T a, T b) {
  if constexpr (std::is_unsigned_v<T>) {
    return b == 0 ? T(0) : T(a / b);
  } else {
    if (b == 0) return 0;
    if (b == -1) return negative(a);
    const T q = a / b;
    return q - T((a % b != 0) & ((a < 0) != (b < 0)));
  }
}
template <class T, if_integer<T> = 0> PB_HD T remainder(T a, T b) {
  if constexpr (std::is_unsigned_v<T>) {
    return b == 0 ? T(0) : T(a % b);
  } else {
    if ((b == 0) | (b == -1)) return 0;
    const T r = a % b;
    return r + ((r != 0) & ((r < 0) != (b < 0)) ? b : T(0));
  }
}

// Returns the exact remainder, by fmod. a - b floor(a / b) has no correct bits left if the quotient is large.
template <class T, if_real<T> = 0> PB_HD T remainder(T a, T b) {
  const T r = std::fmod(a, b);
  return select(r == 0, copysign(T(0), b), select((r < 0) != (b < 0), T(r + b), r));
}
template <class T, if_real<T> = 0> PB_HD T floor_divide(T a, T b) {
  const T r = std::fmod(a, b);
  const T down = (r != 0) & ((r < 0) != (b < 0)) ? T(1) : T(0);
  const T q = (a - r) / b - down;  // a whole number, except for the rounding error of the division
  const T whole = floor(q) + (q - floor(q) > T(0.5) ? T(1) : T(0));
  const T signed_zero = copysign(T(0), T(a / b));
  // As the array API standard requires, and unlike Python, a // inf is 0 or -0, and inf // b is infinite.
  const bool plain = (b == 0) | isinf(a) | isinf(b);
  return select(plain, T(a / b), select(q == 0, signed_zero, whole));
}

// Returns the power by repeated squaring. A negative exponent gives the reciprocal rounded toward zero, and 0 for base 0.
template <class T, if_integer<T> = 0> PB_HD T pow(T base, T exponent) {
  if constexpr (std::is_signed_v<T>)
    if (exponent < 0) return base == 1 ? T(1) : base == T(-1) ? (exponent % 2 ? T(-1) : T(1)) : T(0);
  T y = 1;
  for (auto rest = std::make_unsigned_t<T>(exponent); rest; rest >>= 1) {
    if (rest & 1) y = multiply(y, base);
    base = multiply(base, base);
  }
  return y;
}

// A shift by at least the width of the type moves all bits out, and so does a shift by a negative number.
template <class T, if_integer<T> = 0> PB_HD T left_shift(T a, T b) {
  using U = std::make_unsigned_t<T>;
  const U count = U(b), width = U(sizeof(T) * 8);
  return count < width ? T(U(a) << (count & (width - 1))) : T(0);
}
template <class T, if_integer<T> = 0> PB_HD T right_shift(T a, T b) {
  using U = std::make_unsigned_t<T>;
  const U count = U(b), last = U(sizeof(T) * 8 - 1);
  if constexpr (std::is_unsigned_v<T>) return count <= last ? T(a >> count) : T(0);
  return T(a >> (count <= last ? count : last));
}
template <class T, if_integer<T> = 0> PB_HD T invert(T x) {
  if constexpr (std::is_same_v<T, bool>) return !x;
  else return T(~x);
}

template <class T, if_real<T> = 0> PB_HD T rsqrt(T x) { return 1 / sqrt(x); }

template <class T, if_real<T> = 0> PB_HD T hypot(T x, T y) {
  const T a = abs(x), b = abs(y);
  const T large = select(a > b, a, b), small = select(a > b, b, a);
  const T ratio = small / large;
  const T h = large * sqrt(fma(ratio, ratio, T(1)));
  const T inner = select(isnan(x) | isnan(y), kNaN<T>, select(large == 0, T(0), h));
  return select((a == kInfinity<T>) | (b == kInfinity<T>), kInfinity<T>, inner);
}

}  // namespace pb::m
