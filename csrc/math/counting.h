// CountingScalar is a scalar that counts the operations performed on it. A formula that runs on it shows the work of one element.
#pragma once
#include "math/counts.h"
#include "math/error_function.h"
#include "math/exp_nonpositive.h"
#include "math/function_list.h"
#include "math/gamma.h"
#include "math/hyperbolic.h"
#include "math/number.h"
#include "math/power.h"
#include "math/trig.h"

namespace pb {

// Each of + - and unary minus counts as an addition. Division, roots and transcendental functions count as one special operation
// each. Comparisons, choices, signs and rounding are free.
struct CountingScalar {
  double value = 0;

  CountingScalar() = default;
  PB_HD CountingScalar(double v) : value(v) {}
  PB_HD CountingScalar(int v) : value(v) {}

  static inline thread_local Counts counts{};

  // These functions compile for host and device, as the formulas do (nvcc warns otherwise), but they count on the host only. The
  // barriers keep GCC 12 from merging the increments into vectors, which on level v4 counted special operations where there are none.
  PB_HD static CountingScalar added(double v) {
#if !defined(__CUDA_ARCH__)
    ++counts.adds;
    asm volatile("" ::: "memory");
#endif
    return v;
  }
  PB_HD static CountingScalar multiplied(double v) {
#if !defined(__CUDA_ARCH__)
    ++counts.multiplies;
    asm volatile("" ::: "memory");
#endif
    return v;
  }
  PB_HD static CountingScalar special(double v) {
#if !defined(__CUDA_ARCH__)
    ++counts.special;
    asm volatile("" ::: "memory");
#endif
    return v;
  }

  PB_HD friend CountingScalar operator+(CountingScalar a, CountingScalar b) { return added(a.value + b.value); }
  PB_HD friend CountingScalar operator-(CountingScalar a, CountingScalar b) { return added(a.value - b.value); }
  PB_HD friend CountingScalar operator*(CountingScalar a, CountingScalar b) { return multiplied(a.value * b.value); }
  PB_HD friend CountingScalar operator/(CountingScalar a, CountingScalar b) { return special(a.value / b.value); }
  PB_HD friend CountingScalar operator-(CountingScalar a) { return added(-a.value); }
  PB_HD CountingScalar& operator+=(CountingScalar b) { return *this = *this + b; }
  PB_HD CountingScalar& operator-=(CountingScalar b) { return *this = *this - b; }
  PB_HD CountingScalar& operator*=(CountingScalar b) { return *this = *this * b; }
  PB_HD CountingScalar& operator/=(CountingScalar b) { return *this = *this / b; }

  PB_HD friend bool operator==(CountingScalar a, CountingScalar b) { return a.value == b.value; }
  PB_HD friend bool operator!=(CountingScalar a, CountingScalar b) { return a.value != b.value; }
  PB_HD friend bool operator<(CountingScalar a, CountingScalar b) { return a.value < b.value; }
  PB_HD friend bool operator<=(CountingScalar a, CountingScalar b) { return a.value <= b.value; }
  PB_HD friend bool operator>(CountingScalar a, CountingScalar b) { return a.value > b.value; }
  PB_HD friend bool operator>=(CountingScalar a, CountingScalar b) { return a.value >= b.value; }
};

// Runs f() and returns the operations it performed on CountingScalar values. Overwrites this thread's CountingScalar::counts.
template <class F> Counts counts_of(F&& f) {
  CountingScalar::counts = {};
  f();
  return CountingScalar::counts;
}

namespace m {

// Every function of function_list.h on CountingScalar. It computes the value in double and counts at most one special operation,
// whatever the function does inside.
#define PB_COUNTED(name) \
  PB_HD CountingScalar name(CountingScalar x) { return CountingScalar::special(name(x.value)); }
PB_SPECIAL_OF_ONE(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  PB_HD CountingScalar name(CountingScalar a, CountingScalar b) { return CountingScalar::special(name(a.value, b.value)); }
PB_SPECIAL_OF_TWO(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  PB_HD CountingScalar name(CountingScalar x) { return name(x.value); }
PB_FREE_OF_ONE(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  PB_HD CountingScalar name(CountingScalar a, CountingScalar b) { return name(a.value, b.value); }
PB_FREE_OF_TWO(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  PB_HD bool name(CountingScalar x) { return name(x.value); }
PB_PREDICATES(PB_COUNTED)
#undef PB_COUNTED
// A fused multiply-add counts as a multiplication and an addition.
PB_HD CountingScalar fma(CountingScalar a, CountingScalar b, CountingScalar c) { return a * b + c; }
PB_HD CountingScalar residual(CountingScalar c, CountingScalar a, CountingScalar b) { return c - a * b; }
template <> PB_HD CountingScalar lowest<CountingScalar>() { return lowest<double>(); }
template <> PB_HD CountingScalar highest<CountingScalar>() { return highest<double>(); }

}  // namespace m
}  // namespace pb
