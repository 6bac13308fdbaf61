// The rows of an operand along one of its axes.
#pragma once
#include <utility>

#include "cuda/operand.cuh"

namespace pb::cuda {

// The rows of an operand along an axis: element i of row r lies at row(r) + i * stride.
struct AxisRows {
  char* data;
  int64_t stride;
  Walk<1> outer;

  // outer: the view without the axis. along: the stride of the axis.
  AxisRows(const View& outer, int64_t along) : data(outer.data), stride(along), outer(&outer) {}
  __device__ char* row(int64_t r) const {
    int64_t offset[1];
    outer.offsets(uint32_t(r), offset);
    return data + offset[0];
  }
};

// Removes the axis from the view and returns the axis's stride.
inline int64_t take_axis(View& v, int axis) {
  const int64_t stride = v.stride[axis];
  --v.ndim;
  for (int d = axis; d < v.ndim; ++d) v.shape[d] = v.shape[d + 1], v.stride[d] = v.stride[d + 1];
  return stride;
}

}  // namespace pb::cuda
