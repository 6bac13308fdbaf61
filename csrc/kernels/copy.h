// Moving elements: copies, casts, concatenation, padding, filling.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

// out: contiguous. in: of its shape.
void copy(const Launch& launch);
// in: any number, that lie in `out` one after the other along axis ints[0].
void concat(const Launch& launch);
// ints: how many elements of padding come before each axis of in. reals[0]: the bits of the number around it.
void pad(const Launch& launch);
// reals[0]: the bits of the number.
void fill(const Launch& launch);
void copy_cost(const Launch& launch, Cost& cost);  // of all four: they compute nothing, and the door counts the bytes

// The bits of the number of a fill or a pad.
uint64_t number_of(const Launch& launch);

}  // namespace pb::kernels
