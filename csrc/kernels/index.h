// Reading at indices along an axis.
#pragma once
#include "kernels/failure.h"
#include "launch/door.h"

namespace pb::kernels {

// A shape around one axis.
struct Around {
  int64_t outer, length, inner;
};
Around around(const View& v, int axis);

enum class Negative { from_end, refused };

// Kernels throw OutOfRange for an index outside the axis; on a GPU later, and then what belongs to that index has no meaning.

// out: x with axis ints[0] replaced by the shape of the indices. in: x, indices.
void take(const Launch& launch);
void take_cost(const Launch& launch, Cost& cost);
// out: of the shape of the indices; all have the same shape but for axis ints[0] of x. in: x, indices.
void take_along_axis(const Launch& launch);
void take_along_axis_cost(const Launch& launch, Cost& cost);
// out: the shape of the indices and a last axis of length depth. in: indices.
void one_hot(const Launch& launch);
void one_hot_cost(const Launch& launch, Cost& cost);

// nonzero in two launches, because the length of the result is known only after the first. x is cut in so many pieces:
int64_t nonzero_pieces(int64_t size);
// out: how many elements are not zero before each piece, and last, in all. in: x.
void nonzero_count(const Launch& launch);
// The last of the counts, which is waited for.
int64_t read_total(const View& counts);
// out: the positions of those elements. in: x, the counts.
void nonzero_flat(const Launch& launch);
void nonzero_cost(const Launch& launch, Cost& cost);

}  // namespace pb::kernels
