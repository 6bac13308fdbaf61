// Lanes<T> is a scalar type for the formulas of row ops. Each lane of its vector register holds the number of a different row.
#pragma once
#include "cpu/vector.h"
#include "math/exp_nonpositive.h"
#include "math/number.h"

namespace pb::cpu {

// A condition per lane.
template <class T> struct LaneMask {
  using Vector = typename Register<T>::Ints;
  Vector v;

  PB_HD friend LaneMask operator&(LaneMask a, LaneMask b) { return {a.v & b.v}; }
  PB_HD friend LaneMask operator|(LaneMask a, LaneMask b) { return {a.v | b.v}; }
};
template <class T> PB_HD bool any(LaneMask<T> mask) { return any_lane<T>(mask.v); }

// The result in a lane does not depend on the number of lanes, because each lane computes a different row.
template <class T> struct Lanes {
  static constexpr int kCount = kWidth<T>;
  using Mask = LaneMask<T>;
  using Vector = typename Register<T>::Numbers;
  Vector v;

  Lanes() = default;
  PB_HD Lanes(T x) : v(broadcast<T>(x)) {}
  PB_HD explicit Lanes(Vector v) : v(v) {}

  PB_HD friend Lanes operator+(Lanes a, Lanes b) { return Lanes(a.v + b.v); }
  PB_HD friend Lanes operator-(Lanes a, Lanes b) { return Lanes(a.v - b.v); }
  PB_HD friend Lanes operator*(Lanes a, Lanes b) { return Lanes(a.v * b.v); }
  PB_HD friend Lanes operator/(Lanes a, Lanes b) { return Lanes(a.v / b.v); }
  PB_HD friend Mask operator<(Lanes a, Lanes b) { return {a.v < b.v}; }
  PB_HD friend Mask operator>(Lanes a, Lanes b) { return {a.v > b.v}; }
  PB_HD friend Mask operator<=(Lanes a, Lanes b) { return {a.v <= b.v}; }
  PB_HD friend Mask operator==(Lanes a, Lanes b) { return {a.v == b.v}; }
  PB_HD friend Mask operator!=(Lanes a, Lanes b) { return {a.v != b.v}; }
};

// Applies a scalar function to each lane. Compilers vectorize the loop.
template <class T, class F> PB_HD Lanes<T> each_lane(Lanes<T> x, F f) {
  Lanes<T> y;
  for (int i = 0; i < Lanes<T>::kCount; ++i) y.v[i] = f(T(x.v[i]));
  return y;
}

}  // namespace pb::cpu

namespace pb::m {

template <class T> PB_HD cpu::Lanes<T> select(cpu::LaneMask<T> condition, cpu::Lanes<T> yes, cpu::Lanes<T> no) {
  return cpu::Lanes<T>(cpu::choose<T>(condition.v, yes.v, no.v));
}
template <class T> PB_HD cpu::LaneMask<T> isinf(cpu::Lanes<T> x) {
  return {(x.v == cpu::broadcast<T>(kHighest<T>)) | (x.v == cpu::broadcast<T>(kLowest<T>))};
}
template <class T> PB_HD cpu::Lanes<T> exp_nonpositive(cpu::Lanes<T> x) {
  return cpu::each_lane(x, [](T a) { return exp_nonpositive(a); });
}
template <class T> PB_HD cpu::Lanes<T> expm1_nonpositive(cpu::Lanes<T> x) {
  return cpu::each_lane(x, [](T a) { return expm1_nonpositive(a); });
}
template <class T> PB_HD cpu::Lanes<T> log(cpu::Lanes<T> x) {
  return cpu::each_lane(x, [](T a) { return log(a); });
}
template <class T> PB_HD cpu::Lanes<T> log1p(cpu::Lanes<T> x) {
  return cpu::each_lane(x, [](T a) { return log1p(a); });
}

}  // namespace pb::m
