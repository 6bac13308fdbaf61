// Moving elements: copies, casts, concatenation, padding, filling.
#pragma once
#include <cstring>

#include "launch/door.h"

namespace pb::kernels {

// out: contiguous. in: an operand of the same shape.
void copy(const Launch& launch);
// in: any number of operands. They lie in `out` one after the other along axis ints[0].
void concat(const Launch& launch);
// ints: for each axis, the number of padding elements before the input. reals[0]: the bits of the padding value.
void pad(const Launch& launch);
// reals[0]: the bits of the fill value.
void fill(const Launch& launch);
// The cost of all four: they compute nothing, and the door counts the bytes.
inline void copy_cost(const Launch&, Cost&) {}

// Returns the bits of the value that a fill or a pad writes.
inline uint64_t number_of(const Launch& launch) {
  uint64_t bits;
  std::memcpy(&bits, &launch.reals[0], sizeof bits);
  return bits;
}

}  // namespace pb::kernels
