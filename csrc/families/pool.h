// Pools: the maximum or the mean of each window of the last two axes, which are called a plane.
#pragma once
#include "launch/door.h"
#include "math/number.h"

namespace pb::kernels {

// x and gx have shape (…, H, W); y, g and the indices have shape (…, H', W'), a number for each window. Inputs are floats of one
// dtype, of any strides; outputs are contiguous.
// max_pool: out: y. in: x.             max_pool_indices: out: i * W + j for the maximum x[…, i, j] of each window, int64. in: x.
// max_pool_pullback: out: gx. in: g, x.
// avg_pool: out: y. in: x.             avg_unpool, its transpose: out: gx. in: g.
// ints: the sizes of the windows, their strides and the padding, each for H and for W; then for maxima the dilations for H and for W,
// and for means a Divisor and a number, which is the divisor if it is not 0.
// Of equal elements the first is the maximum, and the last NaN is the maximum of a window with NaN. Sums begin with 0 and add the
// elements of a window, and the windows of an element, one after the other.
extern const Kernel max_pool, max_pool_indices, max_pool_pullback, avg_pool, avg_unpool;

// Each backend defines the following functions.
void run_max_pool(const Launch& launch);
void run_max_pool_indices(const Launch& launch);
void run_max_pool_pullback(const Launch& launch);
void run_avg_pool(const Launch& launch);
void run_avg_unpool(const Launch& launch);
// Turn the work of the formula into the work that the kernel does, like the functions of families/executed.h.
void executed_avg_pool(const Launch& launch, Counts& work);
void executed_avg_unpool(const Launch& launch, Counts& work);

// What a sum over a window is divided by: the number of its elements in the plane, or with those in the padding. With `adaptive`,
// the windows of H' are the H' nearly equal parts of H, and sizes, strides and padding are not used.
enum class Divisor : int64_t { inside, padded, adaptive };

// The windows along one axis.
struct PoolAxis {
  int64_t in, out;  // the length of the plane, and the number of windows
  int64_t size, stride, padding, dilation;
  bool adaptive;

  // Returns a / b rounded down, for a >= 0. A GPU divides 32-bit numbers much faster.
  PB_HD static int64_t ratio(int64_t a, int64_t b) {
    constexpr int64_t kMost = 0xffffffff;
    return a <= kMost && b <= kMost ? int64_t(uint32_t(a) / uint32_t(b)) : a / b;
  }
  PB_HD static int64_t over(int64_t a, int64_t b) { return ratio(a + b - 1, b); }  // rounded up
  PB_HD static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
  PB_HD static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

  // Returns where window o begins. It is negative if the window begins in the padding.
  PB_HD int64_t start(int64_t o) const { return adaptive ? ratio(o * in, out) : o * stride - padding; }
  // Returns where window o of a mean ends, in the padding at most.
  PB_HD int64_t stop(int64_t o) const {
    return adaptive ? over((o + 1) * in, out) : least(o * stride - padding + size, in + padding);
  }
  PB_HD int64_t begin(int64_t o) const { return most(start(o), 0); }
  PB_HD int64_t end(int64_t o) const { return least(stop(o), in); }
  // Returns the first window that position i may belong to, and one more than the last.
  PB_HD int64_t first_of(int64_t i) const {
    if (adaptive) return ratio(i * out, in);
    const int64_t before = i + padding - (size - 1) * dilation;
    return before <= 0 ? 0 : over(before, stride);
  }
  PB_HD int64_t last_of(int64_t i) const {
    return adaptive ? over((i + 1) * out, in) : least(ratio(i + padding, stride) + 1, out);
  }
  // Returns the first element of window o that is in the plane, and one more than the last.
  PB_HD int64_t first_tap(int64_t o) const { return over(most(-start(o), 0), dilation); }
  PB_HD int64_t last_tap(int64_t o) const {
    const int64_t room = in - 1 - start(o);
    return room < 0 ? 0 : least(ratio(room, dilation) + 1, size);
  }
  // Returns the windows, from `first` to before `last`, whose element number `tap` is in the plane.
  PB_HD int64_t first_with(int64_t tap) const {
    const int64_t before = padding - tap * dilation;
    return before <= 0 ? 0 : least(over(before, stride), out);
  }
  PB_HD int64_t last_with(int64_t tap) const {
    const int64_t room = in - 1 + padding - tap * dilation;
    return room < 0 ? 0 : least(ratio(room, stride) + 1, out);
  }
};

struct PoolShape {
  PoolAxis h, w;
  int64_t planes;
  bool padded;
  double divisor;  // 0: the number of elements

  // plane: the operand with the axes H and W; windows: the one with H' and W'.
  PoolShape(const Launch& launch, const View& plane, const View& windows, bool maxima) {
    const int64_t* n = launch.ints;
    const int d = plane.ndim;
    const bool adaptive = !maxima && Divisor(n[6]) == Divisor::adaptive;
    h = {plane.shape[d - 2], windows.shape[d - 2], n[0], n[2], n[4], maxima ? n[6] : 1, adaptive};
    w = {plane.shape[d - 1], windows.shape[d - 1], n[1], n[3], n[5], maxima ? n[7] : 1, adaptive};
    planes = 1;
    for (int k = 0; k + 2 < d; ++k) planes *= plane.shape[k];
    padded = !maxima && Divisor(n[6]) == Divisor::padded;
    divisor = maxima ? 0 : double(n[7]);
  }
  // Returns the number of elements of window o along an axis that the mean of a window counts.
  PB_HD double elements(const PoolAxis& a, int64_t o) const {
    return double(padded ? a.stop(o) - a.start(o) : a.end(o) - a.begin(o));
  }
  // Returns what the sum of the window at (i, j) is divided by.
  PB_HD double divided_by(int64_t i, int64_t j) const { return divided_by(i, j, h.end(i) - h.begin(i), w.end(j) - w.begin(j)); }
  // rows, columns: those of the window that are in the plane. The number of elements of a window with its padding can exceed int64.
  PB_HD double divided_by(int64_t i, int64_t j, int64_t rows, int64_t columns) const {
    if (divisor != 0) return divisor;
    return padded ? elements(h, i) * elements(w, j) : double(rows * columns);
  }
};

// True if the number of elements of each window is a product, which kernels compute.
inline bool multiplies_sizes(const PoolShape& shape) { return shape.padded && shape.divisor == 0; }

// Returns the number of elements of all windows of means that are in a plane.
int64_t pooled_elements(const PoolShape& shape);

}  // namespace pb::kernels
