// Access to indices and operands, for the CPU's kernels.
#pragma once
#include <atomic>
#include <cstring>

#include "cpu/scratch.h"
#include "families/index.h"

namespace pb::cpu {

using kernels::AxisSplit;
using kernels::Negative;
using kernels::split_at;

// Indices that are read only once, a block at a time. Other threads may write to them meanwhile, so the values that are checked
// must be the values that are used.
struct Positions {
  static constexpr int64_t kBlock = 1024;

  const int64_t* from;
  int64_t length;
  std::atomic<bool>* wrong;

  // Copies n <= kBlock indices to `near` and returns it. If one is not in [0, length), sets `wrong` and returns null.
  const int64_t* block(int64_t begin, int64_t n, int64_t* near) const {
    std::memcpy(near, from + begin, n * sizeof(int64_t));
    uint64_t outside = 0;  // its sign bit is set if an index is negative or larger than length - 1
    for (int64_t i = 0; i < n; ++i) outside |= uint64_t(near[i]) | (uint64_t(length - 1) - uint64_t(near[i]));
    if (int64_t(outside) >= 0) return near;
    wrong->store(true, std::memory_order_relaxed);
    return nullptr;
  }
};

// Returns a copy of the indices, converted to positions in [0, length). Throws OutOfRange if one is outside the axis.
const int64_t* resolve(const View& indices, int64_t length, Negative negative, Scratch& scratch);

// Calls run(positions) with the indices themselves. If some are not positions, for example negative ones, calls it again with those
// that resolve() returns.
template <class F> void with_positions(const View& indices, int64_t length, Negative negative, Scratch& scratch, F&& run) {
  std::atomic<bool> wrong{false};
  if (indices.dtype == DType::i64 && indices.contiguous()) {
    run(Positions{indices.as<int64_t>(), length, &wrong});
    if (!wrong.load()) return;
  }
  run(Positions{resolve(indices, length, negative, scratch), length, &wrong});
}

// Returns v itself if it is contiguous and has this dtype, otherwise a copy in `scratch` for which both are true.
View contiguous_as(DType dtype, const View& v, Scratch& scratch);

}  // namespace pb::cpu
