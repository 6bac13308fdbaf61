// The rows of the table of reductions: a backend makes its kernels of them.
#pragma once
#include "kernels/executed.h"
#include "kernels/reduce.h"
#include "math/functors.h"

namespace pb::kernels {

// A row: the functions of math/reduce.def, the type of partial results, and whether each result is divided.
template <class R, bool kDivided = false> struct ReduceRow {
  using Functions = R;
  static constexpr bool kDivides = kDivided;
  static constexpr bool kAdds = std::is_same_v<R, sum_reduce> || std::is_same_v<R, prod_reduce>;
  static constexpr bool kAsks = std::is_same_v<R, any_reduce> || std::is_same_v<R, all_reduce>;
  template <class C> using Result = std::conditional_t<kAsks, bool, C>;
  static constexpr bool takes(Compute c) {
    if (c <= Compute::f64) return true;
    return !kDivides && !(kAdds && c == Compute::b8);
  }
};

// add(ReduceRow<...>{}, name) for every reduction.
template <class Add> void each_reduction(Add&& add) {
#define PB_REDUCE(name, IDENTITY, MAP, COMBINE) add(ReduceRow<name##_reduce>{}, #name);
#include "math/reduce.def"
  add(ReduceRow<sum_reduce, true>{}, "mean");
}

// The row's entry for the bindings.
template <class R> Reduction reduction_of(R, const char* name, void (*run)(const Launch&)) {
  Reduction op{};
  op.kernel = {name, run, reduce_cost, executed_reduction};
  op.predicate = R::kAsks, op.adds = R::kAdds, op.divides = R::kDivides;
  for (int c = 0; c < kComputes; ++c) op.takes[c] = R::takes(Compute(c));
  if constexpr (R::kAdds) op.counts = counts_of([] { (void)R::Functions::combine(Counting(0.5), Counting(0.25)); });
  return op;
}

// The positions of extremes: max and min, and which of two elements wins.
struct Largest : max_reduce {
  template <class C> PB_HD static bool better(C a, C b) { return (a > b) | ((a != a) & (b == b)); }
};
struct Smallest : min_reduce {
  template <class C> PB_HD static bool better(C a, C b) { return (a < b) | ((a != a) & (b == b)); }
};

}  // namespace pb::kernels
