// The loops of running sums, products and extremes along an axis. Each result is computed from the previous one, in order.
#pragma once
#include "families/cumulative.h"

namespace pb::cpu {

// A loop over `length` slices of `width` neighbouring elements; the slices are `step` elements apart. y may be x.
using SliceLoop = void (*)(void* y, const void* x, int64_t length, int64_t step, int64_t width);
// A loop over `rows` rows, which are `pitch` elements apart. Elements of a row along the axis are `step` (1 or -1) apart.
using RowLoop = void (*)(void* y, const void* x, int64_t length, int64_t step, int64_t rows, int64_t pitch);

// An op with its loop for each compute type, or null if the op is not defined for it.
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

// Several rows are processed at a time: a step in one row waits for the previous result of that row, and these waits overlap.
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
