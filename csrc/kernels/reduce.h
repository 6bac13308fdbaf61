// Reductions over any axes, and the positions of extremes along one.
#pragma once
#include <vector>

#include "launch/door.h"

namespace pb::kernels {

// What the bindings know of a reduction.
// out: contiguous. in: x. ints[0]: the reduced axes, a bit each. table: the Reduction.
struct Reduction {
  Kernel kernel;
  bool predicate;         // the result is bool
  bool adds;              // or multiplies: integers then reduce to 64 bits, and bool counts as an integer
  bool divides;           // each result by the number of its elements
  bool takes[kComputes];  // compute types that it makes sense for: see read_as
  Counts counts;          // of one combination
};

// Every reduction, once.
const std::vector<const Reduction*>& reductions();
void reduce_cost(const Launch& launch, Cost& cost);

// The type that x is read as, and the dtype of the results.
Compute read_as(const Reduction& op, DType x);
DType result_dtype(const Reduction& op, DType x);

// out: int64, contiguous. in: x. ints: the axis, and whether the smallest is wanted. The first of equals; NaN wins.
void arg_reduce(const Launch& launch);
void arg_reduce_cost(const Launch& launch, Cost& cost);

// ---- the order of combination: a function of the shape alone, and the same on every device

// An operand as a matrix [cells, rows, width]: the rows are its reduced axes in their order, the width what is kept after
// the last of them. Axes of length one have no part in it. Each view is collapsed.
struct Matrix {
  View outer, reduced, inner;
  int64_t cells, rows, width;
};
Matrix matrix_of(const View& x, int64_t mask);

constexpr int64_t kLanes = 64;               // results of neighbours that are folded apart, and combined by halves at the end
constexpr int64_t kFoldBlock = 16 * kLanes;  // elements of a single column that share lanes; more begin new ones
constexpr int64_t kColumnDepth = 64;         // rows that a lane of several columns takes one after the other

// Rows come in blocks, and each column of a block has one result; those of all blocks are the rows of the next matrix, until
// one block is left. In a block, rows r, r + groups, ... share lanes, so that narrow matrices have as many as wide ones.
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

}  // namespace pb::kernels
