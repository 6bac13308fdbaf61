// Reading at indices along an axis.
#pragma once
#include "cpu/scratch.h"
#include "kernels/failure.h"
#include "launch/door.h"

namespace pb::cpu {

// A shape around one axis.
struct Around {
  int64_t outer, length, inner;
};
Around around(const View& v, int axis);

enum class Negative { from_end, refused };

// The indices as positions in [0, length), contiguous: where they lie, or in scratch. Throws kernels::OutOfRange.
const int64_t* resolve(const View& indices, int64_t length, Negative negative, Scratch& scratch);

// The elements of v as one contiguous run of `dtype`: where they lie, or in scratch.
View contiguous_as(DType dtype, const View& v, Scratch& scratch);
// A contiguous view of the shape of `like`.
View contiguous_view(void* data, DType dtype, const View& like);

// out: x with axis ints[0] replaced by the shape of the indices. in: x, indices.
void take(const Launch& launch);
void take_cost(const Launch& launch, Cost& cost);
// out: of the shape of the indices; all have the same shape but for axis ints[0] of x. in: x, indices.
void take_along_axis(const Launch& launch);
void take_along_axis_cost(const Launch& launch, Cost& cost);
// out: the shape of the indices and a last axis of length depth. in: indices.
void one_hot(const Launch& launch);
void one_hot_cost(const Launch& launch, Cost& cost);

// nonzero in two launches, because the length of the result is known only after the first: out: how many elements of
// each piece are not zero; then out: their positions. in: x, and the second time the counts.
constexpr int64_t kNonzeroPiece = 64 * 1024;
void nonzero_count(const Launch& launch);
void nonzero_flat(const Launch& launch);
void nonzero_cost(const Launch& launch, Cost& cost);

}  // namespace pb::cpu
