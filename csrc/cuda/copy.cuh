// Copies and fills elements, for the kernels of every family.
#pragma once
#include "cuda/operand.cuh"
#include "families/copy.h"
#include "launch/check.h"

namespace pb::cuda {

// Writes the elements of `in` to `out`. Both have the same shape; strides and dtypes may differ. Their memory must not overlap.
void assign(View out, View in);
// Writes `number`, the bits of one element, to every element of `out`.
void assign_number(View out, uint64_t number);

// Returns the elements of v as a contiguous run of `dtype`: v itself if it is one already, otherwise a copy in scratch.
View contiguous_as(DType dtype, const View& v, Scratch& scratch);

// ---- units: 1, 2, 4, 8 or 16 bytes that are moved by one instruction

template <class F> inline auto visit_unit(int64_t bytes, F&& f) {
  switch (bytes) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
    default: return f(uint4{});
  }
}
// Returns the largest unit, in bytes, that divides all addresses, strides and lengths whose bitwise OR is `together`.
inline int64_t unit_of(uint64_t together) {
  const uint64_t bits = together | 16;
  return int64_t(bits & (0 - bits));
}
inline uint64_t address(const View& v) { return reinterpret_cast<uintptr_t>(v.data); }

// Returns a unit filled with copies of one element.
template <class U> inline U repeated(uint64_t number, int size) {
  char bytes[sizeof(U)];
  for (size_t i = 0; i < sizeof(U); i += size_t(size)) std::memcpy(bytes + i, &number, size_t(size));
  U unit;
  std::memcpy(&unit, bytes, sizeof unit);
  return unit;
}

// Divides positions by a fixed length, like Divider. It is fastest if all positions are below 2^31. The 64-bit division is written
// out because the compiler's division is a function call.
struct Ratio {
  int64_t length;
  uint64_t multiplier = 0;
  Divider quick;
  int shift = 0;
  bool wide;

  // positions: the number of positions that may be divided.
  Ratio(int64_t by, int64_t positions) : length(by > 0 ? by : 1), wide(positions > kMaxWalk || length > kMaxWalk) {
    if (!wide) {
      quick = Divider(uint32_t(length));
      return;
    }
    while ((uint64_t{1} << shift) < uint64_t(length)) ++shift;
    using Wide = unsigned __int128;
    multiplier = uint64_t((Wide(1) << 64) * ((uint64_t{1} << shift) - uint64_t(length)) / uint64_t(length) + 1);
  }
  Ratio() : Ratio(1, 1) {}
  __device__ int64_t divide(int64_t n) const {
    if (!wide) return int64_t(quick.divide(uint32_t(n)));
    return int64_t((__umul64hi(uint64_t(n), multiplier) + uint64_t(n)) >> shift);
  }
};

// Returns this thread's index in a one-dimensional grid.
__device__ inline int64_t thread_number() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }

}  // namespace pb::cuda
