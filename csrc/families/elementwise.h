// The elementwise ops: one output from up to four inputs of the same shape after broadcasting.
#pragma once
#include <vector>

#include "families/executed.h"
#include "launch/door.h"
#include "math/counting.h"
#include "math/functors.h"

namespace pb::kernels {

constexpr int kMaxArity = 4;

// An op of this family, as the bindings see it.
struct Elementwise {
  Kernel kernel;
  int arity;
  bool predicate;         // the result is bool
  int conditions;         // the number of leading operands that keep their own dtype: 1 for the condition of `where`
  bool takes[kComputes];  // compute types that the op is defined for
  Counts counts;          // the work of one element, measured by running the functor on the counting scalar
};

// Returns every op of the family; each backend defines this function. An input may be a number in the launch: View::number.
const std::vector<const Elementwise*>& elementwise();

inline void elementwise_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Elementwise*>(launch.table);
  cost.add(op.counts, launch.out().size());
}

enum Types { kFloats = 1, kInts = 2, kBool = 4 };

// An entry of the table, from a row of math/unary.def or math/binary.def: its functor, its number of operands, and the types it is
// defined for.
template <class F, int Arity, int kTypes, bool kPredicate = false, int kConditions = 0> struct ElementwiseEntry {
  using Functor = F;
  static constexpr int kArity = Arity, kConditionCount = kConditions;
  static constexpr bool kIsPredicate = kPredicate;
  template <class C> using Result = std::conditional_t<kPredicate, bool, C>;
  static constexpr bool takes(Compute c) {
    if (c <= Compute::f64) return (kTypes & kFloats) != 0;
    return c == Compute::b8 ? (kTypes & kBool) != 0 : (kTypes & kInts) != 0;
  }
};

// where(condition, a, b): the only op whose first operand has a different dtype.
struct where_forward {
  template <class A> PB_HD A operator()(A condition, A a, A b) const { return condition != A(0) ? a : b; }
};

// Each of these calls add(ElementwiseEntry<...>{}, name) for every op of one kind; a backend instantiates its kernels with them.
template <class Add> void each_unary(Add&& add) {
#define PB_FORWARD(name, FWD) add(ElementwiseEntry<name##_forward, 1, kFloats>{}, #name);
#define PB_FORWARD_NUMBER(name, FWD) add(ElementwiseEntry<name##_forward, 1, kFloats | kInts>{}, #name);
#define PB_PREDICATE(name, EXPR) add(ElementwiseEntry<name##_forward, 1, kFloats, true>{}, #name);
#define PB_LOGICAL(name, EXPR) add(ElementwiseEntry<name##_forward, 1, kFloats | kInts | kBool, true>{}, #name);
#define PB_BITWISE(name, EXPR) add(ElementwiseEntry<name##_forward, 1, kInts | kBool>{}, #name);
#include "math/unary.def"
}
template <class Add> void each_unary_pullback(Add&& add) {
#define PB_PULLBACK(name, PULL) add(ElementwiseEntry<name##_pullback, 3, kFloats>{}, #name "_pullback");
#include "math/unary.def"
}
template <class Add> void each_binary(Add&& add) {
#define PB_FORWARD(name, FWD) add(ElementwiseEntry<name##_forward, 2, kFloats>{}, #name);
#define PB_FORWARD_NUMBER(name, FWD) add(ElementwiseEntry<name##_forward, 2, kFloats | kInts>{}, #name);
#define PB_COMPARE(name, EXPR) add(ElementwiseEntry<name##_forward, 2, kFloats | kInts | kBool, true>{}, #name);
#define PB_LOGICAL(name, EXPR) add(ElementwiseEntry<name##_forward, 2, kFloats | kInts | kBool, true>{}, #name);
#define PB_BITWISE(name, EXPR) add(ElementwiseEntry<name##_forward, 2, kInts | kBool>{}, #name);
#define PB_SHIFT(name, EXPR) add(ElementwiseEntry<name##_forward, 2, kInts>{}, #name);
#include "math/binary.def"
  using Where = ElementwiseEntry<where_forward, 3, kFloats | kInts | kBool, false, 1>;
  add(Where{}, "where");
}
template <class Add> void each_binary_pullback(Add&& add) {
#define PB_PULLBACK_A(name, PULL) add(ElementwiseEntry<name##_pullback_a, 4, kFloats>{}, #name "_pullback_a");
#define PB_PULLBACK_B(name, PULL) add(ElementwiseEntry<name##_pullback_b, 4, kFloats>{}, #name "_pullback_b");
#include "math/binary.def"
}

// Returns what the bindings read of an entry. `run` is the backend's kernel.
template <class R> Elementwise elementwise_of(R, const char* name, void (*run)(const Launch&)) {
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
      if constexpr (R::kArity == 1) (void)f(CountingScalar(0.5));
      else if constexpr (R::kArity == 2) (void)f(CountingScalar(0.5), CountingScalar(0.25));
      else if constexpr (R::kArity == 3) (void)f(CountingScalar(0.5), CountingScalar(0.25), CountingScalar(0.5));
      else (void)f(CountingScalar(0.5), CountingScalar(0.25), CountingScalar(0.5), CountingScalar(0.75));
    }
  });
  return op;
}

}  // namespace pb::kernels
