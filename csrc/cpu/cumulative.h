// Running sums, products and maxima along an axis: each result from the one before, in order.
#pragma once
#include "families/cumulative.h"

namespace pb::cpu {

// `length` slices of `width` neighbours, `step` elements apart. y may be x.
using SliceLoop = void (*)(void* y, const void* x, int64_t length, int64_t step, int64_t width);
// The same for `rows` rows, `pitch` elements apart, whose neighbours lie along the axis.
using RowLoop = void (*)(void* y, const void* x, int64_t length, int64_t step, int64_t rows, int64_t pitch);

// An op with its loops by compute type, null where it makes no sense.
struct CumulativeKernel : kernels::Cumulative {
  SliceLoop slices[kComputes];
  RowLoop rows[kComputes];
};

template <class Op, class C> void slice_loop(void* out, const void* in, int64_t length, int64_t step, int64_t width) {
  const Op op;
  C* y = static_cast<C*>(out);
  const C* x = static_cast<const C*>(in);
  if (x != y)
    for (int64_t i = 0; i < width; ++i) y[i] = x[i];
  for (int64_t l = 1; l < length; ++l) {
    const C* before = y;
    y += step, x += step;
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i) y[i] = op(before[i], x[i]);
  }
}

// Several rows at a time: each waits for its last result, and they do so together.
constexpr int kRowsTogether = 8;

template <class Op, class C, int kRows> void walk_rows(C* y, const C* x, int64_t length, int64_t step, int64_t pitch) {
  const Op op;
  C now[kRows];
  for (int r = 0; r < kRows; ++r) y[r * pitch] = now[r] = x[r * pitch];
  for (int64_t l = 1; l < length; ++l) {
    y += step, x += step;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) y[r * pitch] = now[r] = op(now[r], x[r * pitch]);
  }
}

template <class Op, class C>
void row_loop(void* out, const void* in, int64_t length, int64_t step, int64_t rows, int64_t pitch) {
  C* y = static_cast<C*>(out);
  const C* x = static_cast<const C*>(in);
  int64_t r = 0;
  for (; r + kRowsTogether <= rows; r += kRowsTogether)
    walk_rows<Op, C, kRowsTogether>(y + r * pitch, x + r * pitch, length, step, pitch);
  for (; r < rows; ++r) walk_rows<Op, C, 1>(y + r * pitch, x + r * pitch, length, step, pitch);
}

}  // namespace pb::cpu
