// The squared error of two arrays: the sum, or with ints[0] the mean, of (x - target)^2 over all elements.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

// squared_error_with_gradient computes both at once, with the same bits. out: the number, gx. in: g, x, target.
// Inputs are floats of one dtype, x and target of one shape and any strides; outputs are contiguous.
extern const Kernel squared_error, squared_error_pullback, squared_error_with_gradient;

// Each backend defines the following functions.
void run_squared_error(const Launch& launch);
void run_squared_error_pullback(const Launch& launch);
void run_squared_error_with_gradient(const Launch& launch);

// The mean of one element is not divided, as in a reduction.
inline bool is_divided(const Launch& launch, int64_t n) { return launch.ints[0] && n != 1; }
// Returns what g is multiplied by for each element.
inline double share_of(const Launch& launch, int64_t n) { return launch.ints[0] ? 1.0 / double(n ? n : 1) : 1.0; }

}  // namespace pb::kernels
