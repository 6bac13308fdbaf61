// Reductions over any axes, and the positions of extremes along one.
#pragma once
#include <algorithm>
#include <vector>

#include "families/executed.h"
#include "launch/door.h"
#include "math/functors.h"

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

inline void reduce_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Reduction*>(launch.table);
  const int64_t n = launch.in().size(), results = launch.out().size();
  cost.add(op.counts, std::max<int64_t>(0, n - results));
  if (op.divides && n != results) cost.special = results;  // a cell of one element is not divided
}

// Returns the compute type that elements of dtype x are read as.
inline Compute read_as(const Reduction& op, DType x) { return op.adds && x == DType::b8 ? Compute::i64 : compute_type(x); }
inline DType result_dtype(const Reduction& op, DType x) {
  if (op.predicate) return DType::b8;
  if (!op.adds || is_float(x)) return x;
  return x >= DType::u8 && x <= DType::u64 ? DType::u64 : DType::i64;
}

// out: int64, contiguous. in: x. ints: the axis, and 1 for the smallest element. The first of equal elements wins, and NaN wins.
void arg_reduce(const Launch& launch);
inline void arg_reduce_cost(const Launch&, Cost&) {}

// ---- the order of combination: a function of the shape alone, and the same on every device

// An operand as a matrix [cells, rows, width]: the rows are its reduced axes in their order, and the width is the product of the
// axes after the last of them. Axes of length one have no part in it. Each view is collapsed.
struct Matrix {
  View outer, reduced, inner;
  int64_t cells, rows, width;
};
inline Matrix matrix_of(const View& x, int64_t mask) {
  Matrix m;
  for (View* part : {&m.outer, &m.reduced, &m.inner}) part->data = x.data, part->dtype = x.dtype, part->ndim = 0;
  int end = x.ndim;
  while (end > 0 && (x.shape[end - 1] == 1 || !(mask >> (end - 1) & 1))) --end;
  for (int d = 0; d < x.ndim; ++d) {
    if (x.shape[d] == 1) continue;
    View& part = d >= end ? m.inner : mask >> d & 1 ? m.reduced : m.outer;
    part.shape[part.ndim] = x.shape[d], part.stride[part.ndim++] = x.stride[d];
  }
  m.cells = m.outer.size(), m.rows = m.reduced.size(), m.width = m.inner.size();
  for (View* part : {&m.outer, &m.reduced, &m.inner}) collapse(part, 1);
  return m;
}

constexpr int64_t kLanes = 64;               // neighbouring partial results, which are combined by halves at the end
constexpr int64_t kFoldBlock = 16 * kLanes;  // rows per block of a matrix of one column
constexpr int64_t kColumnDepth = 64;         // rows per lane of a block of a wider matrix

// The rows are cut into blocks, and each block yields one result per column. The results of all blocks are the rows of the next,
// smaller matrix, until one block is left. Within a block, rows r, r + groups, r + 2 groups, ... accumulate in the same lanes, so
// that a narrow matrix uses as many lanes as a wide one.
struct Cut {
  int64_t groups, block, blocks;
};
inline Cut cut(int64_t rows, int64_t width) {
  Cut c{1, 0, 1};
  const int64_t columns = width > 1 ? width : 1;
  while (c.groups * columns < kLanes) c.groups *= 2;
  c.block = width == 1 ? kFoldBlock : c.groups * kColumnDepth;
  if (rows > c.block) c.blocks = (rows + c.block - 1) / c.block;
  return c;
}

// ---- the table

// An entry of the table, from a row of math/reduce.def: its functions, the type of its results, and whether each result is divided
// by the number of elements.
template <class R, bool kDivided = false> struct ReductionEntry {
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

// Calls add(ReductionEntry<...>{}, name) for every reduction; a backend instantiates its kernels with it.
template <class Add> void each_reduction(Add&& add) {
#define PB_REDUCE(name, IDENTITY, MAP, COMBINE) add(ReductionEntry<name##_reduce>{}, #name);
#include "math/reduce.def"
  add(ReductionEntry<sum_reduce, true>{}, "mean");
}

// Returns what the bindings read of an entry. `run` is the backend's kernel.
template <class R> Reduction reduction_of(R, const char* name, void (*run)(const Launch&)) {
  Reduction op{};
  op.kernel = {name, run, reduce_cost, executed_reduction};
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
