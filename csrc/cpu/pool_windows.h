// The elements of windows of pools, one after the other for all windows of a row.
#pragma once
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/scratch.h"
#include "cpu/vector.h"
#include "families/pool.h"

namespace pb::cpu {

using kernels::PoolAxis;
using kernels::PoolShape;

// Positions in a plane have the size of its elements, so that both fill as many lanes of a vector.
template <class C> using Position = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;

// Calls f(stride) with the distance between windows, as a constant if it is 1 or 2, so that the loops over windows are vectorized.
template <class F> void with_stride(int64_t stride, const F& f) {
  if (stride == 1) f(std::integral_constant<int64_t, 1>());
  else if (stride == 2) f(std::integral_constant<int64_t, 2>());
  else f(stride);
}

// Calls f(tap, first, last) for each element of windows that is in the plane for the windows from `first` to before `last`. Elements
// that are in the padding of all windows take no time: the next element of a window is one of the window before `first`.
template <class F> void each_tap(const PoolAxis& w, const F& f) {
  for (int64_t tap = w.out ? w.first_tap(w.out - 1) : w.size; tap < w.size;) {
    const int64_t first = w.first_with(tap), last = w.last_with(tap);
    if (first < last) f(tap++, first, last);
    else tap = first ? std::max(tap + 1, w.first_tap(first - 1)) : w.size;
  }
}
// Calls f in the opposite order.
template <class F> void each_tap_from_last(const PoolAxis& w, const F& f) {
  for (int64_t tap = (w.out ? w.last_tap(0) : 0) - 1; tap >= 0;) {
    const int64_t first = w.first_with(tap), last = w.last_with(tap);
    if (first < last) f(tap--, first, last);
    else tap = last < w.out ? std::min(tap, w.last_tap(last)) - 1 : -1;
  }
}

// Returns x[0], x[stride], x[2 stride], .... Stride 2 reads one element more.
template <class C, class Stride> Vector<C> strided(const C* x, Stride stride) {
  if constexpr (std::is_same_v<Stride, std::integral_constant<int64_t, 1>>) return load_vector(x);
  else if constexpr (std::is_same_v<Stride, std::integral_constant<int64_t, 2>>)
    return even_lanes<C>(load_vector(x), load_vector(x + kWidth<C>));
  Vector<C> v;
  for (int k = 0; k < kWidth<C>; ++k) v[k] = x[k * stride];
  return v;
}

// Reads elements of full vectors of windows, some of which may lie beside the row or its plane.
template <class C> class VectorRows {
 public:
  using Ints = typename Register<C>::Ints;

  // Windows with sizes, strides or dilations that are much larger than the plane are not read so.
  static bool fits(const PoolAxis& w) {
    const int64_t most = 4 * w.in + 4096;
    if (w.adaptive || w.size > most || w.dilation > most || w.stride > most || w.padding > most || w.out > most) return false;
    return length(w) <= 4 * most && w.size * whole<C>(w.out) <= 16 * most;
  }
  // all: the elements of all planes.
  VectorRows(const PoolShape& p, const C* all, Scratch& scratch)
      : w_(p.w), all_(all), size_(p.planes * p.h.in * p.w.in), windows_(whole<C>(p.w.out)) {
    if (!fits(w_)) return;
    length_ = length(w_);
    row_ = scratch.take<C>(length_);
    inside_ = scratch.take<Position<C>>(w_.size, windows_);
    for (int64_t tap = 0; tap < w_.size; ++tap) {
      const int64_t first = w_.first_with(tap), last = w_.last_with(tap);
      for (int64_t j = 0; j < windows_; ++j) inside_[tap * windows_ + j] = j >= first && j < last ? -1 : 0;
    }
  }

  explicit operator bool() const { return row_; }

  // Calls f(tap, x, inside) for each element of the windows [j, j + kWidth), which in the lanes that are `inside` are in the plane.
  template <class F> void each_tap(const C* row, int64_t j, const F& f) const {
    const C* first = first_of(row) + j * w_.stride;
    with_stride(w_.stride, [&](auto stride) {
      for (int64_t tap = 0; tap < w_.size; ++tap) {
        Ints inside;
        std::memcpy(&inside, inside_ + tap * windows_ + j, sizeof inside);
        f(tap, strided(first + tap * w_.dilation, stride), inside);
      }
    });
  }

 private:
  static int64_t length(const PoolAxis& w) { return whole<C>(w.out) * w.stride + (w.size - 1) * w.dilation; }
  // Returns the first element of window 0: in place, unless vectors would read beside all planes.
  const C* first_of(const C* row) const {
    const int64_t first = row - all_ - w_.padding;
    if (first >= 0 && first + length_ <= size_) return all_ + first;
    for (int64_t k = 0; k < length_; ++k) row_[k] = first + k >= 0 && first + k < size_ ? all_[first + k] : C(0);
    return row_;
  }

  const PoolAxis& w_;
  const C* all_;
  int64_t size_, windows_, length_ = 0;
  C* row_ = nullptr;
  Position<C>* inside_ = nullptr;  // -1 for windows whose element number `tap` is in the plane, otherwise 0
};

}  // namespace pb::cpu
