// The rows of the table of elementwise ops: a backend makes its kernels of them.
#pragma once
#include "kernels/elementwise.h"
#include "kernels/executed.h"
#include "math/counting.h"
#include "math/functors.h"

namespace pb::kernels {

enum Types { kFloats = 1, kInts = 2, kBool = 4 };

// A row: functor F of so many operands makes sense for these types.
template <class F, int Arity, int kTypes, bool kPredicate = false, int kConditions = 0> struct Row {
  using Functor = F;
  static constexpr int kArity = Arity, kConditionCount = kConditions;
  static constexpr bool kIsPredicate = kPredicate;
  template <class C> using Result = std::conditional_t<kPredicate, bool, C>;
  static constexpr bool takes(Compute c) {
    if (c <= Compute::f64) return (kTypes & kFloats) != 0;
    return c == Compute::b8 ? (kTypes & kBool) != 0 : (kTypes & kInts) != 0;
  }
};

// where(condition, a, b): the only one whose first operand has another dtype.
struct where_forward {
  template <class A> PB_HD A operator()(A condition, A a, A b) const { return condition != A(0) ? a : b; }
};

// add(Row<...>{}, name) for the forward ops of one operand, for their pullbacks, and so on.
template <class Add> void each_unary(Add&& add) {
#define PB_UNARY(name, FWD, PULL) add(Row<name##_forward, 1, kFloats>{}, #name);
#define PB_UNARY_NUMBER(name, FWD, PULL) add(Row<name##_forward, 1, kFloats | kInts>{}, #name);
#define PB_PREDICATE(name, EXPR) add(Row<name##_forward, 1, kFloats, true>{}, #name);
#define PB_LOGICAL(name, EXPR) add(Row<name##_forward, 1, kFloats | kInts | kBool, true>{}, #name);
#define PB_BITWISE(name, EXPR) add(Row<name##_forward, 1, kInts | kBool>{}, #name);
#include "math/unary.def"
}
template <class Add> void each_unary_pullback(Add&& add) {
#define PB_UNARY(name, FWD, PULL) add(Row<name##_pullback, 3, kFloats>{}, #name "_pullback");
#define PB_UNARY_NUMBER PB_UNARY
#include "math/unary.def"
}
template <class Add> void each_binary(Add&& add) {
#define PB_BINARY(name, FWD, PULL_A, PULL_B) add(Row<name##_forward, 2, kFloats>{}, #name);
#define PB_BINARY_NUMBER(name, FWD, PULL_A, PULL_B) add(Row<name##_forward, 2, kFloats | kInts>{}, #name);
#define PB_COMPARE(name, EXPR) add(Row<name##_forward, 2, kFloats | kInts | kBool, true>{}, #name);
#define PB_LOGICAL(name, EXPR) add(Row<name##_forward, 2, kFloats | kInts | kBool, true>{}, #name);
#define PB_BITWISE(name, EXPR) add(Row<name##_forward, 2, kInts | kBool>{}, #name);
#include "math/binary.def"
  add(Row < where_forward, 3, kFloats | kInts | kBool, false, 1 > {}, "where");
}
template <class Add> void each_binary_pullback(Add&& add) {
#define PB_BINARY(name, FWD, PULL_A, PULL_B)                      \
  add(Row<name##_pullback_a, 4, kFloats>{}, #name "_pullback_a"); \
  add(Row<name##_pullback_b, 4, kFloats>{}, #name "_pullback_b");
#define PB_BINARY_NUMBER PB_BINARY
#include "math/binary.def"
}

// The row's entry for the bindings, but for its kernel.
template <class R> Elementwise entry(R, const char* name, void (*run)(const Launch&)) {
  Elementwise op{};
  op.kernel = {name, run, elementwise_cost, executed_elements};
  op.arity = R::kArity;
  op.predicate = R::kIsPredicate;
  op.conditions = R::kConditionCount;
  for (int c = 0; c < kComputes; ++c) op.takes[c] = R::takes(Compute(c));
  if (!R::takes(Compute::f32)) return op;
  op.counts = counts_of([] {
    const typename R::Functor f;
    if constexpr (R::takes(Compute::f32)) {
      if constexpr (R::kArity == 1) (void)f(Counting(0.5));
      else if constexpr (R::kArity == 2) (void)f(Counting(0.5), Counting(0.25));
      else if constexpr (R::kArity == 3) (void)f(Counting(0.5), Counting(0.25), Counting(0.5));
      else (void)f(Counting(0.5), Counting(0.25), Counting(0.5), Counting(0.75));
    }
  });
  return op;
}

}  // namespace pb::kernels
