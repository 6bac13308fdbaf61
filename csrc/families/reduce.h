// Reductions over any axes, and the positions of extremes along one.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "families/executed.h"
#include "launch/door.h"
#include "math/counting.h"
#include "math/reductions.h"

namespace pb::kernels {

// A reduction, as the bindings see it.
// out: contiguous. in: x. ints[0]: the reduced axes, one bit each. table: the Reduction.
struct Reduction {
  Kernel kernel;
  bool predicate;         // the result is bool
  bool adds;              // adds or multiplies: integers then reduce to 64 bits, and bool counts as an integer
  bool divides;           // each result is divided by the number of its elements
  bool takes[kComputes];  // compute types that the reduction is defined for: see read_as
  Counts counts;          // the work of one combination
};

// Returns every reduction; each backend defines this function.
const std::vector<const Reduction*>& reductions();

// Sets out to the sums of x over some axes, one bit each, by the backend's reduction. out is contiguous.
void sum_over(const View& out, const View& x, int64_t axes);

inline void reduce_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Reduction*>(launch.table);
  const int64_t n = launch.in().size(), results = launch.out().size();
  cost.add(op.counts, std::max<int64_t>(0, n - results));
  if (op.divides && n != results) cost.special = results;  // a cell of one element is not divided
}

// Returns the compute type that elements of dtype x are read as.
inline Compute read_as(const Reduction& op, DType x) {
  if (op.predicate) return Compute::b8;
  return op.adds && x == DType::b8 ? Compute::i64 : compute_type(x);
}
inline DType result_dtype(const Reduction& op, DType x) {
  if (op.predicate) return DType::b8;
  if (!op.adds || is_float(x)) return x;
  return x >= DType::u8 && x <= DType::u64 ? DType::u64 : DType::i64;
}

// out: int64, contiguous. in: x. ints: the axis, and 1 for the smallest element. The first of equal elements wins, and NaN wins.
void arg_reduce(const Launch& launch);
inline void arg_reduce_cost(const Launch&, Cost&) {}

// ---- the operand

// An operand as a matrix [cells, rows, width]. The rows are its reduced axes, in their order. The other axes are the cells and the
// columns of a cell, in their order, so that the results are [cells, width]. If neighbouring rows lie closest together in memory, a
// cell is one column; otherwise it has as many neighbouring columns as one stride reaches. Axes of length one have no part in it. Each
// view is collapsed.
struct Matrix {
  View outer, reduced, inner;
  int64_t cells, rows, width;
};
inline Matrix matrix_of(const View& x, int64_t mask) {
  Matrix m;
  View kept;
  for (View* part : {&kept, &m.outer, &m.reduced, &m.inner}) part->data = x.data, part->dtype = x.dtype, part->ndim = 0;
  for (int d = 0; d < x.ndim; ++d) {
    View& part = mask >> d & 1 ? m.reduced : kept;
    part.shape[part.ndim] = x.shape[d], part.stride[part.ndim++] = x.stride[d];
  }
  collapse(&m.reduced, 1), collapse(&kept, 1);
  // Returns the distance of neighbours along the last axis of v. Along an axis of stride 0 there are none.
  const auto distance = [](const View& v) {
    const int64_t stride = v.ndim ? std::abs(v.stride[v.ndim - 1]) : 0;
    return stride ? stride : INT64_MAX;
  };
  const int cells = kept.ndim - (kept.ndim > 0 && distance(kept) <= distance(m.reduced));
  for (int d = 0; d < kept.ndim; ++d) {
    View& part = d < cells ? m.outer : m.inner;
    part.shape[part.ndim] = kept.shape[d], part.stride[part.ndim++] = kept.stride[d];
  }
  m.cells = m.outer.size(), m.rows = m.reduced.size(), m.width = m.inner.size();
  return m;
}

// ---- the table

// An entry of the table, from a row of math/reduce.def: its functions, and whether each result is divided by the number of elements.
template <class R, bool kDivided = false> struct ReductionEntry {
  using Functions = R;
  static constexpr bool kDivides = kDivided;
  static constexpr bool kAdds = std::is_same_v<R, sum_reduce> || std::is_same_v<R, prod_reduce>;
  static constexpr bool kAsks = std::is_same_v<R, any_reduce> || std::is_same_v<R, all_reduce>;
  static constexpr bool takes(Compute c) {
    if (c == Compute::b8) return !kAdds;
    return !kAsks && (c <= Compute::f64 || !kDivides);
  }
};

// Calls add(ReductionEntry<...>{}, name) for every reduction; a backend instantiates its kernels with it.
template <class Add> void each_reduction(Add&& add) {
#define PB_REDUCE(name, IDENTITY, COMBINE) add(ReductionEntry<name##_reduce>{}, #name);
#include "math/reduce.def"
  add(ReductionEntry<sum_reduce, true>{}, "mean");
}

// Returns what the bindings read of an entry. `run` is the backend's kernel.
template <class R> Reduction reduction_of(R, const char* name, void (*run)(const Launch&)) {
  Reduction op{};
  op.kernel = {name, run, reduce_cost};
  op.predicate = R::kAsks, op.adds = R::kAdds, op.divides = R::kDivides;
  for (int c = 0; c < kComputes; ++c) op.takes[c] = R::takes(Compute(c));
  if constexpr (R::kAdds) op.counts = counts_of([] { (void)R::Functions::combine(CountingScalar(0.5), CountingScalar(0.25)); });
  return op;
}

// The two extremes whose positions arg_reduce finds. better(a, b) is true if a replaces b.
struct Largest : max_reduce {
  template <class C> PB_HD static bool better(C a, C b) { return (a > b) | ((a != a) & (b == b)); }
};
struct Smallest : min_reduce {
  template <class C> PB_HD static bool better(C a, C b) { return (a < b) | ((a != a) & (b == b)); }
};

}  // namespace pb::kernels
