// Indices and operands as the CPU's kernels read them.
#pragma once
#include "cpu/scratch.h"
#include "kernels/index.h"

namespace pb::cpu {

using kernels::Around;
using kernels::around;
using kernels::Negative;

// The indices as positions in [0, length), contiguous: where they lie, or in scratch. Throws kernels::OutOfRange.
const int64_t* resolve(const View& indices, int64_t length, Negative negative, Scratch& scratch);

// The elements of v as one contiguous run of `dtype`: where they lie, or in scratch.
View contiguous_as(DType dtype, const View& v, Scratch& scratch);
// A contiguous view of the shape of `like`.
View contiguous_view(void* data, DType dtype, const View& like);

}  // namespace pb::cpu
