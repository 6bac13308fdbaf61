// Turns the rows of the tables of elementwise ops into function objects. No other file compiles the formulas of a row:
//   unary.def     name_forward(x)       name_pullback(g, x, y)
//   binary.def    name_forward(a, b)    name_pullback_a(g, a, b, y)    name_pullback_b(g, a, b, y)
// Predicates, comparisons and logical ops have a forward only, which returns bool. Ops whose pullback needs no kernel have a
// forward only, too, which returns A. A pullback gives 0 instead of NaN if its cotangent is 0, whatever the slope is, so that the
// branch that a `where` did not choose contributes no NaN.
#pragma once
#include "math/scalar.h"

namespace pb {

#define PB_FUNCTOR1(name, RESULT, EXPR)                                    \
  struct name##_forward {                                                  \
    template <class A> PB_HD RESULT operator()(A x) const { return EXPR; } \
  };
#define PB_FORWARD(name, FWD) PB_FUNCTOR1(name, A, FWD)
#define PB_FORWARD_NUMBER PB_FORWARD
#define PB_PULLBACK(name, PULL)                                                                  \
  struct name##_pullback {                                                                       \
    template <class A>                                                                           \
    PB_HD A operator()([[maybe_unused]] A g, [[maybe_unused]] A x, [[maybe_unused]] A y) const { \
      return m::mask_nan_gradient(g, A(PULL));                                                   \
    }                                                                                            \
  };
#define PB_PREDICATE(name, EXPR) PB_FUNCTOR1(name, bool, EXPR)
#define PB_LOGICAL(name, EXPR) PB_FUNCTOR1(name, bool, EXPR)
#define PB_BITWISE(name, EXPR) PB_FUNCTOR1(name, A, EXPR)
#include "math/unary.def"

// The index of the operand of a functor that is an angle, or -1 if none is. A loop first looks for angles that are too large for
// the usual reduction (m::is_far).
template <class F> constexpr int kAngle = -1;
template <> inline constexpr int kAngle<sin_forward> = 0;
template <> inline constexpr int kAngle<cos_forward> = 0;
template <> inline constexpr int kAngle<tan_forward> = 0;
template <> inline constexpr int kAngle<sin_pullback> = 1;
template <> inline constexpr int kAngle<cos_pullback> = 1;

#define PB_FUNCTOR2(name, RESULT, EXPR)                                         \
  struct name##_forward {                                                       \
    template <class A> PB_HD RESULT operator()(A a, A b) const { return EXPR; } \
  };
#define PB_PULLBACK2(name, PULL)                                                                                       \
  struct name {                                                                                                        \
    template <class A>                                                                                                 \
    PB_HD A operator()([[maybe_unused]] A g, [[maybe_unused]] A a, [[maybe_unused]] A b, [[maybe_unused]] A y) const { \
      return m::mask_nan_gradient(g, A(PULL));                                                                         \
    }                                                                                                                  \
  };
#define PB_FORWARD(name, FWD) PB_FUNCTOR2(name, A, FWD)
#define PB_FORWARD_NUMBER PB_FORWARD
#define PB_PULLBACK_A(name, PULL) PB_PULLBACK2(name##_pullback_a, PULL)
#define PB_PULLBACK_B(name, PULL) PB_PULLBACK2(name##_pullback_b, PULL)
#define PB_COMPARE(name, EXPR) PB_FUNCTOR2(name, bool, EXPR)
#define PB_LOGICAL(name, EXPR) PB_FUNCTOR2(name, bool, EXPR)
#define PB_BITWISE(name, EXPR) PB_FUNCTOR2(name, A, EXPR)
#define PB_SHIFT(name, EXPR) PB_FUNCTOR2(name, A, EXPR)
#include "math/binary.def"

#undef PB_FUNCTOR1
#undef PB_FUNCTOR2
#undef PB_PULLBACK2

}  // namespace pb
