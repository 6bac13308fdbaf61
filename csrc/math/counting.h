// A scalar that counts the operations performed on it: run a formula on Counting to measure what one element costs.
#pragma once
#include "math/counts.h"
#include "math/error_function.h"
#include "math/exp_nonpositive.h"
#include "math/function_list.h"
#include "math/hyperbolic.h"
#include "math/number.h"
#include "math/power.h"
#include "math/trig.h"

namespace pb {

// Each of + - and unary minus counts as an addition. Division, roots and transcendental functions count as one special operation
// each. Comparisons, choices, signs and rounding are free.
struct Counting {
  double value = 0;

  Counting() = default;
  PB_HD Counting(double v) : value(v) {}
  PB_HD Counting(int v) : value(v) {}

  static inline thread_local Counts counts{};

  // These are for host and device, like the formulas (nvcc warns otherwise), but only the host counts.
  PB_HD static Counting added(double v) {
#if !defined(__CUDA_ARCH__)
    ++counts.adds;
#endif
    return v;
  }
  PB_HD static Counting multiplied(double v) {
#if !defined(__CUDA_ARCH__)
    ++counts.multiplies;
#endif
    return v;
  }
  PB_HD static Counting special(double v) {
#if !defined(__CUDA_ARCH__)
    ++counts.special;
#endif
    return v;
  }

  PB_HD friend Counting operator+(Counting a, Counting b) { return added(a.value + b.value); }
  PB_HD friend Counting operator-(Counting a, Counting b) { return added(a.value - b.value); }
  PB_HD friend Counting operator*(Counting a, Counting b) { return multiplied(a.value * b.value); }
  PB_HD friend Counting operator/(Counting a, Counting b) { return special(a.value / b.value); }
  PB_HD friend Counting operator-(Counting a) { return added(-a.value); }
  PB_HD Counting& operator+=(Counting b) { return *this = *this + b; }
  PB_HD Counting& operator-=(Counting b) { return *this = *this - b; }
  PB_HD Counting& operator*=(Counting b) { return *this = *this * b; }
  PB_HD Counting& operator/=(Counting b) { return *this = *this / b; }

  PB_HD friend bool operator==(Counting a, Counting b) { return a.value == b.value; }
  PB_HD friend bool operator!=(Counting a, Counting b) { return a.value != b.value; }
  PB_HD friend bool operator<(Counting a, Counting b) { return a.value < b.value; }
  PB_HD friend bool operator<=(Counting a, Counting b) { return a.value <= b.value; }
  PB_HD friend bool operator>(Counting a, Counting b) { return a.value > b.value; }
  PB_HD friend bool operator>=(Counting a, Counting b) { return a.value >= b.value; }
};

// Runs f() and returns the operations it performed on Counting values. Overwrites this thread's Counting::counts.
template <class F> Counts counts_of(F&& f) {
  Counting::counts = {};
  f();
  return Counting::counts;
}

namespace m {

// Every function of function_list.h on Counting: its value on double, and at most one special operation, whatever is inside.
#define PB_COUNTED(name) \
  PB_HD Counting name(Counting x) { return Counting::special(name(x.value)); }
PB_SPECIAL_OF_ONE(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  PB_HD Counting name(Counting a, Counting b) { return Counting::special(name(a.value, b.value)); }
PB_SPECIAL_OF_TWO(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  PB_HD Counting name(Counting x) { return name(x.value); }
PB_FREE_OF_ONE(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  PB_HD Counting name(Counting a, Counting b) { return name(a.value, b.value); }
PB_FREE_OF_TWO(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  PB_HD bool name(Counting x) { return name(x.value); }
PB_PREDICATES(PB_COUNTED)
#undef PB_COUNTED
template <> PB_HD Counting lowest<Counting>() { return lowest<double>(); }
template <> PB_HD Counting highest<Counting>() { return highest<double>(); }

}  // namespace m
}  // namespace pb
