// Indices as kernels read them: of any integer dtype, any strides, negative ones from the end.
#pragma once
#include "cuda/copy.cuh"
#include "families/index.h"

namespace pb::cuda {

// Where the elements of a strided operand lie, in bytes.
class Path {
 public:
  explicit Path(View v) {
    collapse(&v, 1);
    ndim_ = v.ndim;
    const int64_t n = v.size();
    for (int d = 0; d < ndim_; ++d) length_[d] = Ratio(v.shape[d], n), stride_[d] = v.stride[d];
    if (ndim_ == 0) stride_[0] = 0;
  }
  __device__ int64_t offset(int64_t i) const {
    if (ndim_ <= 1) return i * stride_[0];
    int64_t offset = 0;
#pragma unroll
    for (int step = 0; step < kMaxDims; ++step) {
      const int d = ndim_ - 1 - step;
      if (d < 0) break;
      int64_t at = i;
      if (d > 0) {
        i = length_[d].divide(at);
        at -= i * length_[d].length;
      }
      offset += at * stride_[d];
    }
    return offset;
  }

 private:
  int ndim_;
  Ratio length_[kMaxDims];
  int64_t stride_[kMaxDims];
};

// The positions that an index may name.
struct Bounds {
  int64_t length, from_end;
  FaultSink sink;

  Bounds(const Launch& launch, DType dtype, int64_t axis_length, kernels::Negative negative)
      : length(axis_length), sink(fault_sink(launch)) {
    // uint64 beyond int64 becomes negative, and does not count from the end.
    from_end = negative == kernels::Negative::from_end && dtype != DType::u64 ? length : 0;
  }
  // The position that an index names, in [0, length); -1 where there is none, which is reported. where: the index's own place.
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

// Reports an index outside its axis, where nothing else reads them.
void check_indices(const View& v, const Indices& indices);

}  // namespace pb::cuda
