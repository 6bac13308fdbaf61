// Reading at indices along an axis.
#pragma once
#include <algorithm>

#include "launch/door.h"
#include "launch/failure.h"

namespace pb::kernels {

// A shape split at one axis: the product of the lengths before it, its own length, and the product of those after it.
struct AxisSplit {
  int64_t outer, length, inner;
};
inline AxisSplit split_at(const View& v, int axis) {
  AxisSplit a{1, v.shape[axis], 1};
  for (int d = 0; d < axis; ++d) a.outer *= v.shape[d];
  for (int d = axis + 1; d < v.ndim; ++d) a.inner *= v.shape[d];
  return a;
}

enum class Negative { from_end, refused };

// These kernels throw OutOfRange for an index outside the axis. On a GPU a later call throws it, and the elements that belong to
// the index are undefined.

// out: x with axis ints[0] replaced by the shape of the indices. in: x, indices. ints[1]: Negative.
void take(const Launch& launch);
inline void take_cost(const Launch& launch, Cost& cost) {
  cost.bytes_written = launch.out().bytes();
  cost.bytes_read = std::min(launch.out().bytes(), launch.in(0).distinct_bytes()) + launch.in(1).distinct_bytes();
}
// out: of the shape of the indices, which is that of x except along axis ints[0]. in: x, indices.
void take_along_axis(const Launch& launch);
inline void take_along_axis_cost(const Launch& launch, Cost& cost) { take_cost(launch, cost); }
// out: the shape of the indices and a last axis of length depth. in: indices, of which negative ones are refused.
void one_hot(const Launch& launch);
inline void one_hot_cost(const Launch&, Cost&) {}

// Finding nonzero elements takes two launches, because the length of the result is known only after the first. They are for
// `pb.nonzero`, which the Python package does not declare yet.
// Returns the number of pieces that x, of `size` elements, is cut into.
int64_t nonzero_pieces(int64_t size);
// out: for each piece, the number of nonzero elements before it; and last, their total. in: x.
void nonzero_count(const Launch& launch);
// Waits for the counts and returns the last one, the total.
int64_t read_total(const View& counts);
// out: the positions of the nonzero elements. in: x, the counts.
void nonzero_flat(const Launch& launch);
inline void nonzero_cost(const Launch&, Cost&) {}

}  // namespace pb::kernels
