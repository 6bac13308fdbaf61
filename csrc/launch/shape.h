// Strided views of memory, and functions on shapes that kernels share.
#pragma once
#include <cstdint>

#include "launch/dtype.h"

namespace pb {

constexpr int kMaxDims = 8;

// A view describes a tensor to kernels, as plain data. Strides are in bytes and may be zero (broadcast) or negative.
struct View {
  char* data;
  DType dtype;
  bool number = false;  // data points to one number in the host's memory, which is passed to a kernel by value
  int ndim;
  int64_t shape[kMaxDims];
  int64_t stride[kMaxDims];

  int64_t size() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= shape[d];
    return n;
  }
  int64_t bytes() const { return size() * item_size(dtype); }
  // Returns the bytes of the distinct elements of the view, which are all that a kernel has to read of a broadcast operand.
  int64_t distinct_bytes() const {
    int64_t n = item_size(dtype);
    for (int d = 0; d < ndim; ++d) n *= shape[d] == 0 || stride[d] != 0 ? shape[d] : 1;
    return n;
  }
  bool contiguous() const {
    int64_t expected = item_size(dtype);
    for (int d = ndim - 1; d >= 0; --d) {
      if (shape[d] != 1 && stride[d] != expected) return size() == 0;  // an empty view is contiguous with any strides
      expected *= shape[d];
    }
    return true;
  }
  template <class T> T* as() const { return reinterpret_cast<T*>(data); }
};

// True if the view has several elements, all of which are one element of memory.
inline bool repeats_one(const View& v) {
  bool several = false;
  for (int d = 0; d < v.ndim; ++d) {
    if (v.shape[d] == 1) continue;
    if (v.stride[d] != 0) return false;
    several = true;
  }
  return several;
}

// Returns a contiguous view of `dtype` at `data`, with the shape of `like`.
inline View contiguous_view(void* data, DType dtype, const View& like) {
  View v = like;
  v.data = static_cast<char*>(data);
  v.dtype = dtype;
  int64_t stride = item_size(dtype);
  for (int d = v.ndim - 1; d >= 0; --d) v.stride[d] = stride, stride *= v.shape[d];
  return v;
}

// Returns a contiguous view of n elements.
inline View flat_view(const void* data, DType dtype, int64_t n) {
  View v;
  v.data = static_cast<char*>(const_cast<void*>(data));
  v.dtype = dtype;
  v.ndim = 1;
  v.shape[0] = n;
  v.stride[0] = item_size(dtype);
  return v;
}

// Sets v's shape and strides so that it broadcasts to `shape`. Returns false if the shapes do not broadcast.
inline bool broadcast_to(View& v, int ndim, const int64_t* shape) {
  if (v.ndim > ndim) return false;
  const int lead = ndim - v.ndim;
  for (int d = ndim - 1; d >= 0; --d) {
    const int64_t length = d >= lead ? v.shape[d - lead] : 1;
    const int64_t stride = d >= lead ? v.stride[d - lead] : 0;
    if (length != shape[d] && length != 1) return false;
    v.stride[d] = length == 1 ? 0 : stride;
    v.shape[d] = shape[d];
  }
  v.ndim = ndim;
  return true;
}

// Merges neighbouring axes if one stride covers both in every view, and removes axes of length one. All views must have the same
// shape.
inline void collapse(View* views, int count) {
  const int ndim = views[0].ndim;
  int kept = 0;
  for (int d = 0; d < ndim; ++d) {
    if (views[0].shape[d] == 1) continue;
    bool merge = kept > 0;
    for (int k = 0; merge && k < count; ++k) merge = views[k].stride[kept - 1] == views[k].stride[d] * views[k].shape[d];
    if (merge) {
      for (int k = 0; k < count; ++k) {
        views[k].shape[kept - 1] *= views[k].shape[d];
        views[k].stride[kept - 1] = views[k].stride[d];
      }
    } else {
      for (int k = 0; k < count; ++k) {
        views[k].shape[kept] = views[k].shape[d];
        views[k].stride[kept] = views[k].stride[d];
      }
      ++kept;
    }
  }
  for (int k = 0; k < count; ++k) views[k].ndim = kept;
}

}  // namespace pb
