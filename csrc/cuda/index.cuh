// Reads indices of any integer dtype and any strides. Negative indices may count from the end.
#pragma once
#include "cuda/copy.cuh"
#include "families/index.h"

namespace pb::cuda {

// Maps the number of an element of a strided operand to its offset in bytes.
class Path {
 public:
  explicit Path(View v) {
    collapse(&v, 1);
    ndim_ = v.ndim;
    const int64_t n = v.size();
    for (int d = 0; d < ndim_; ++d) length_[d] = Ratio(v.shape[d], n), stride_[d] = v.stride[d];
    if (ndim_ == 0) stride_[0] = 0;
  }
  __device__ int64_t offset(int64_t i) const { return ndim_ <= 1 ? i * stride_[0] : walk(i); }

 private:
  // The loop is not unrolled, because kernels read several indices at a time, and most indices have one axis.
  __device__ int64_t walk(int64_t i) const {
    int64_t offset = 0;
#pragma unroll 1
    for (int d = ndim_ - 1; d > 0; --d) {
      const int64_t next = length_[d].divide(i);
      offset += (i - next * length_[d].length) * stride_[d];
      i = next;
    }
    return offset + i * stride_[0];
  }

  int ndim_;
  Ratio length_[kMaxDims];
  int64_t stride_[kMaxDims];
};

// The range of valid indices.
struct Bounds {
  int64_t length, from_end;
  FaultSink sink;

  Bounds(const Launch& launch, DType dtype, int64_t axis_length, kernels::Negative negative)
      : length(axis_length), sink(fault_sink(launch)) {
    // A uint64 above the largest int64 becomes negative, and must not count from the end.
    from_end = negative == kernels::Negative::from_end && dtype != DType::u64 ? length : 0;
  }
  // Returns the position in [0, length) that an index refers to. An index out of range is reported, and the result is -1. where:
  // the position of the index itself, for the report.
  __device__ int64_t resolve(int64_t index, int64_t where) const {
    const int64_t at = index < 0 ? index + from_end : index;
    if (at >= 0 && at < length) return at;
    report(sink, where, index, length);
    return -1;
  }
};

struct Indices {
  const char* data;
  DType dtype;
  Path path;
  Bounds bounds;

  Indices(const Launch& launch, const View& v, int64_t length, kernels::Negative negative)
      : data(v.data), dtype(v.dtype), path(v), bounds(launch, v.dtype, length, negative) {}
  __device__ int64_t position(int64_t i) const { return bounds.resolve(load_as<int64_t>(dtype, data + path.offset(i)), i); }
};

// Reports indices outside their axis, for launches that do not read them otherwise.
void check_indices(const View& v, const Indices& indices);

}  // namespace pb::cuda
