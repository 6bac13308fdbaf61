// The addresses and the values of elements, for reductions and scans.
#pragma once
#include "cuda/fold.cuh"
#include "cuda/operand.cuh"

namespace pb::cuda {

// Returns axes [begin, end) of an operand, collapsed.
inline View axes_of(const View& x, int begin, int end) {
  View v = x;
  v.ndim = 0;
  for (int d = begin; d < end; ++d) v.shape[v.ndim] = x.shape[d], v.stride[v.ndim++] = x.stride[d];
  collapse(&v, 1);
  return v;
}

// Byte offsets along some axes of an operand. They are computed once per cell or column, so plain divisions are fast enough.
struct Axes {
  int ndim;
  int64_t length[kMaxDims], stride[kMaxDims];  // bytes

  explicit Axes(const View& v) : ndim(v.ndim) {
    for (int d = 0; d < kMaxDims; ++d) length[d] = d < ndim ? v.shape[d] : 1, stride[d] = d < ndim ? v.stride[d] : 0;
  }
  __device__ int64_t offset(int64_t i) const {
    int64_t at = 0;
    for (int d = ndim - 1; d > 0; --d) {
      const int64_t next = i <= kMaxWalk ? int64_t(uint32_t(i) / uint32_t(length[d])) : i / length[d];
      at += (i - next * length[d]) * stride[d];
      i = next;
    }
    return at + i * stride[0];
  }
};

// ---- elements

// Elements are loaded without conversion, and all loads are issued before the first element is converted: a conversion waits for
// its load.
template <class C> using Raw = std::conditional_t<std::is_same_v<C, float>, uint32_t, C>;
template <class C> __device__ inline Raw<C> load_raw(DType dtype, const char* p) {
  if constexpr (std::is_same_v<C, float>)
    return dtype == DType::f32 ? *reinterpret_cast<const uint32_t*>(p) : *reinterpret_cast<const uint16_t*>(p);
  else if constexpr (std::is_same_v<C, int64_t>)
    return dtype == DType::b8 ? *reinterpret_cast<const uint8_t*>(p) : load_as<C>(dtype, p);
  else return *reinterpret_cast<const C*>(p);
}
// T is the type that elements are stored as if C is float.
template <class C, class T> __device__ inline C from_raw(Raw<C> x) {
  if constexpr (!std::is_same_v<C, float>) return x;
  else if constexpr (std::is_same_v<T, float>) return m::from_bits<float>(x);
  else return float(T::from_bits(uint16_t(x)));
}
// Calls f(Tag<T>{}) with the T that from_raw() needs for elements of this dtype.
template <class C, class F> __device__ inline void by_storage(DType dtype, F&& f) {
  if constexpr (!std::is_same_v<C, float>) {
    f(Tag<C>{});
  } else {
    if (dtype == DType::f32) f(Tag<float>{});
    else if (dtype == DType::f16) f(Tag<float16>{});
    else f(Tag<bfloat16>{});
  }
}
// The number of elements that a thread loads before it uses them. For integers there are fewer, because each load branches on the
// dtype.
template <class C> constexpr int kAhead = std::is_same_v<C, int64_t> ? 4 : sizeof(C) == 4 ? 16 : 8;

// Reads an element that another block has written.
template <class A> __device__ inline A read_fresh(const A* p) {
  if constexpr (std::is_same_v<A, bool>) return __ldcg(reinterpret_cast<const unsigned char*>(p)) != 0;
  else return __ldcg(p);
}

}  // namespace pb::cuda
