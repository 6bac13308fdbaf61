// Running sums, products and extremes along an axis.
#pragma once
#include <vector>

#include "families/executed.h"
#include "launch/door.h"
#include "math/counting.h"
#include "math/number.h"

namespace pb::kernels {

// An op of this family, as the bindings see it.
// out: of the shape of x, contiguous. in: x. ints: the axis, and 1 to run from its end. table: the Cumulative.
struct Cumulative {
  Kernel kernel;
  bool wide;      // integers and bools give 64-bit results; otherwise out has the dtype of x
  Counts counts;  // the work of one step
};

// Returns every op of the family; each backend defines this function.
const std::vector<const Cumulative*>& cumulatives();

inline void cumulative_cost(const Launch& launch, Cost& cost) {
  const View& out = launch.out();
  if (out.size() == 0) return;
  const auto& op = *static_cast<const Cumulative*>(launch.table);
  cost.add(op.counts, out.size() - out.size() / out.shape[launch.ints[0]]);
}

// One step of each op: y is the previous result, x the next element. Of equal elements the first stays, and a NaN stays. The extremes
// are for `cummax` and `cummin`, which the Python package does not declare yet.
struct RunningSum {
  static constexpr bool kWide = true;
  template <class A> PB_HD A operator()(A y, A x) const { return m::add(y, x); }
};
struct RunningProduct {
  static constexpr bool kWide = true;
  template <class A> PB_HD A operator()(A y, A x) const { return m::multiply(y, x); }
};
struct RunningMax {
  static constexpr bool kWide = false;
  template <class A> PB_HD A operator()(A y, A x) const { return (x > y) | (x != x) ? x : y; }
};
struct RunningMin {
  static constexpr bool kWide = false;
  template <class A> PB_HD A operator()(A y, A x) const { return (x < y) | (x != x) ? x : y; }
};

// Calls add(Op{}, name) for every op; a backend instantiates its kernels with it.
template <class Add> void each_cumulative(Add&& add) {
  add(RunningSum{}, "cumulative_sum"), add(RunningProduct{}, "cumulative_prod");
  add(RunningMax{}, "cumulative_max"), add(RunningMin{}, "cumulative_min");
}

// True if results can have this type. Sums and products of bools are computed as integers.
template <class Op> constexpr bool runs_on(Compute c) { return !Op::kWide || c != Compute::b8; }

// Returns what the bindings read of an op.
template <class Op> Cumulative cumulative_of(Op, const char* name, void (*run)(const Launch&)) {
  return {{name, run, cumulative_cost, executed_cumulative}, Op::kWide, counts_of([] {
            (void)Op()(CountingScalar(0.5), CountingScalar(0.25));
          })};
}

}  // namespace pb::kernels
