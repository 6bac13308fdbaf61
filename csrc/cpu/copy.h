// Moving elements: copies, casts, concatenation, padding, filling.
#pragma once
#include "launch/door.h"

namespace pb::cpu {

// Writes the elements of `in` into `out`, of the same shape, in parallel where it pays. Any strides of both; where the
// dtypes differ, `out` is contiguous. They do not overlap.
void assign(View out, View in);
// Writes `number`, the bits of one element, to every element of `out`.
void assign_number(View out, uint64_t number);

// out: contiguous. in: of its shape.
void copy(const Launch& launch);
// in: any number, that lie in `out` one after the other along axis ints[0].
void concat(const Launch& launch);
// ints: how many elements of padding come before each axis of in. reals[0]: the bits of the number around it.
void pad(const Launch& launch);
// reals[0]: the bits of the number.
void fill(const Launch& launch);
void copy_cost(const Launch& launch, Cost& cost);  // of all four: they compute nothing, and the door counts the bytes

}  // namespace pb::cpu
