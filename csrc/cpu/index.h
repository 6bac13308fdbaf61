// Indices and operands as the CPU's kernels read them.
#pragma once
#include <atomic>
#include <cstring>

#include "cpu/scratch.h"
#include "families/index.h"

namespace pb::cpu {

using kernels::AxisSplit;
using kernels::Negative;
using kernels::split_at;

// Indices to be read once, a block at a time: other threads may write where they lie, so what is checked must be what is used.
struct Positions {
  static constexpr int64_t kBlock = 1024;

  const int64_t* from;
  int64_t length;
  std::atomic<bool>* wrong;

  // Copies n <= kBlock of them to `near` and returns it; null, having set `wrong`, where one is not in [0, length).
  const int64_t* block(int64_t begin, int64_t n, int64_t* near) const {
    std::memcpy(near, from + begin, n * sizeof(int64_t));
    uint64_t outside = 0;  // the sign bit is set where an index is negative, or is more than length - 1
    for (int64_t i = 0; i < n; ++i) outside |= uint64_t(near[i]) | (uint64_t(length - 1) - uint64_t(near[i]));
    if (int64_t(outside) >= 0) return near;
    wrong->store(true, std::memory_order_relaxed);
    return nullptr;
  }
};

// Copies of the indices as positions in [0, length). Throws OutOfRange.
const int64_t* resolve(const View& indices, int64_t length, Negative negative, Scratch& scratch);

// run(positions): with the indices where they lie, and if that does not do, again with those that `resolve` gives.
template <class F> void with_positions(const View& indices, int64_t length, Negative negative, Scratch& scratch, F&& run) {
  std::atomic<bool> wrong{false};
  if (indices.dtype == DType::i64 && indices.contiguous()) {
    run(Positions{indices.as<int64_t>(), length, &wrong});
    if (!wrong.load()) return;
  }
  run(Positions{resolve(indices, length, negative, scratch), length, &wrong});
}

// The elements of v as one contiguous run of `dtype`: where they lie, or in scratch.
View contiguous_as(DType dtype, const View& v, Scratch& scratch);

}  // namespace pb::cpu
