// The rows of the table of running sums: a backend makes its kernels of them.
#pragma once
#include "kernels/cumulative.h"
#include "kernels/executed.h"
#include "math/counting.h"
#include "math/number.h"

namespace pb::kernels {

// y, the result before, and x, the next element. Of equals the first stays; a NaN stays too.
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

// add(Op{}, name) for every op.
template <class Add> void each_cumulative(Add&& add) {
  add(RunningSum{}, "cumulative_sum"), add(RunningProduct{}, "cumulative_prod");
  add(RunningMax{}, "cumulative_max"), add(RunningMin{}, "cumulative_min");
}

// Whether results can be of this type: bool is added up as a whole number.
template <class Op> constexpr bool runs_on(Compute c) { return !Op::kWide || c != Compute::b8; }

// The op's entry for the bindings.
template <class Op> Cumulative cumulative_of(Op, const char* name, void (*run)(const Launch&)) {
  return {{name, run, cumulative_cost, executed_cumulative}, Op::kWide, counts_of([] {
            (void)Op()(Counting(0.5), Counting(0.25));
          })};
}

}  // namespace pb::kernels
