// Sorting along an axis. All of it is stable, and puts NaN last in both directions.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

// in: x, no longer than kMaxRow (order.h) along the axis. ints: axis, descending.
void sort(const Launch& launch);     // out: of the shape and dtype of x
void argsort(const Launch& launch);  // out: int64
// out: int64, the positions of the first ints[2] elements in that order.
void first_positions(const Launch& launch);
void sort_cost(const Launch& launch, Cost& cost);  // comparisons are not counted

// out: int64, where in the sorted in(0) each element of in(1) would go; ints[0]: after its equals, else before.
void searchsorted(const Launch& launch);

}  // namespace pb::kernels
