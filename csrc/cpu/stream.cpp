// The implementation of stream.h: loads, stores and conversions of strided elements.
#include "cpu/stream.h"

#include <algorithm>
#include <cstring>

#include "math/convert.h"
#include "math/scalar.h"

namespace pb::cpu {
namespace {

template <class C, class T> inline C widen(T x) { return C(acc_t<T>(x)); }
template <class C> inline C widen(bool x) { return C(x); }

template <class C, class T> void load_as(const char* src, int64_t stride, int64_t n, C* dst) {
  if constexpr (std::is_same_v<T, bool>) {  // memory that other libraries write may hold other bytes than 0 and 1
    const uint8_t* p = reinterpret_cast<const uint8_t*>(src);
    for (int64_t i = 0; i < n; ++i) dst[i] = C(p[i * stride] != 0);
    return;
  }
  if (stride == int64_t(sizeof(T))) {
    const T* p = reinterpret_cast<const T*>(src);
    if constexpr (std::is_same_v<C, T>) std::memcpy(dst, p, n * sizeof(T));
    else
      for (int64_t i = 0; i < n; ++i) dst[i] = widen<C>(p[i]);
  } else if (stride == 0) {
    std::fill_n(dst, n, widen<C>(*reinterpret_cast<const T*>(src)));
  } else {
    for (int64_t i = 0; i < n; ++i) dst[i] = widen<C>(*reinterpret_cast<const T*>(src + i * stride));
  }
}

template <class C, class T> void store_as(const C* src, int64_t n, char* dst, int64_t stride) {
  if (stride == int64_t(sizeof(T))) {
    T* p = reinterpret_cast<T*>(dst);
    if constexpr (std::is_same_v<C, T>) std::memcpy(p, src, n * sizeof(T));
    else
      for (int64_t i = 0; i < n; ++i) p[i] = m::narrow<T>(src[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) *reinterpret_cast<T*>(dst + i * stride) = m::narrow<T>(src[i]);
  }
}

}  // namespace

void load(DType dtype, Compute compute, const char* src, int64_t stride, int64_t n, void* dst) {
  visit(dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    visit(compute, [&](auto c) {
      using C = typename decltype(c)::type;
      load_as<C, T>(src, stride, n, static_cast<C*>(dst));
    });
  });
}

void store(Compute compute, DType dtype, const void* src, int64_t n, char* dst, int64_t stride) {
  visit(dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    visit(compute, [&](auto c) {
      using C = typename decltype(c)::type;
      store_as<C, T>(static_cast<const C*>(src), n, dst, stride);
    });
  });
}

Reader::Reader(const View& view, Compute compute)
    : view_(view), compute_(compute), same_type_(view.dtype == storage_of(compute)) {
  direct_ = same_type_ && view.contiguous();
}

const void* Reader::block(int64_t i, int64_t n, void* buffer) {
  const int size = compute_size(compute_);
  if (direct_) return view_.data + i * size;
  if (view_.ndim == 0) view_ = flat_view(view_.data, view_.dtype, 1);

  int64_t at[kMaxDims];
  const char* p = view_.data;
  int64_t rest = i;
  for (int d = view_.ndim - 1; d >= 0; --d) {
    at[d] = d > 0 ? rest % view_.shape[d] : rest;
    if (d > 0) rest /= view_.shape[d];
    p += at[d] * view_.stride[d];
  }
  const int inner = view_.ndim - 1;
  const int64_t length = view_.shape[inner], stride = view_.stride[inner];
  if (at[inner] + n <= length) {
    if (same_type_ && stride == size) return p;
    if (stride == 0) {
      if (splat_ == p && splat_count_ >= n) return buffer;
      splat_ = p, splat_count_ = n;
    }
    load(view_.dtype, compute_, p, stride, n, buffer);
    return buffer;
  }
  splat_ = nullptr;
  char* out = static_cast<char*>(buffer);
  for (int64_t left = n; left > 0;) {
    const int64_t run = std::min(left, length - at[inner]);
    load(view_.dtype, compute_, p, stride, run, out);
    out += run * size, left -= run, p += run * stride, at[inner] += run;
    for (int d = inner; d > 0 && at[d] == view_.shape[d]; --d) {
      p += view_.stride[d - 1] - at[d] * view_.stride[d];
      at[d] = 0, ++at[d - 1];
    }
  }
  return buffer;
}

}  // namespace pb::cpu
