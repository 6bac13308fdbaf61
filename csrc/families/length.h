// The root of the sum of squares over some axes, for numbers of any size, and its pullback.
#pragma once
#include "families/norm_rows.h"
#include "families/reduce.h"

namespace pb::kernels {

// length: out: y, contiguous. in: x. ints[0]: the reduced axes, one bit each, which y has with length 1.
// length_pullback: out: gx, contiguous. in: g, x, y. g and y have the lengths of y's axes, 1 or that of x.
// All have one float dtype.
extern const Kernel length, length_pullback;

// Each backend defines the following functions.
void run_length(const Launch& launch);
void run_length_pullback(const Launch& launch);

// Sets `squares`, which is contiguous and has the shape of x, to the squares of x, and `sums` to their sums over the axes of the mask,
// by the elementwise op and the reduction of the backend.
void sum_squares(const View& sums, const View& squares, const View& x, int64_t mask);
// Sets out = factor * x, element by element, by the elementwise op of the backend. All have one shape.
void multiply(const View& out, const View& factor, const View& x);

// Runs in_float or in_double, by the dtype of the operands. Of half precision it runs in_float on copies in float32, and rounds the
// result once. Scratch, assign: those of the backend.
template <class Scratch, class Run, class Assign>
void run_wide(const Launch& launch, Run in_float, Run in_double, Assign assign) {
  if (launch.in().dtype == DType::f32) return in_float(launch);
  if (launch.in().dtype == DType::f64) return in_double(launch);
  Scratch scratch;
  View views[4];
  for (int k = 1; k < 1 + launch.inputs; ++k) views[k] = contiguous_as(DType::f32, launch.operands[k], scratch);
  views[0] = contiguous_view(scratch.template take<float>(launch.out().size()), DType::f32, launch.out());
  Launch wide = launch;
  wide.operands = views;
  in_float(wide);
  assign(launch.out(), views[0]);
}

// Returns the axes of x along which y has length 1, one bit each.
inline int64_t axes_of_one(const View& y) {
  int64_t mask = 0;
  for (int d = 0; d < y.ndim; ++d) mask |= int64_t(y.shape[d] == 1) << d;
  return mask;
}

// ---- the formulas

// Smaller sums of n squares may have lost digits, because the squares are near the smallest number.
template <class A> PB_HD A least_sum(int64_t n) { return A(double(n)) * A(kSmallSquare<A>); }
// True if squares overflowed, or may have lost digits. least: see least_sum.
template <class A> PB_HD bool is_far(A sum, A least) { return m::isinf(sum) | (sum < least); }

// Measures x, of which sum is the sum of squares, again. Scaling by a power of two changes no digit.
template <class Over, class X, class A> PB_HD A length_of_far(const Over& over, X x, A sum) {
  const A scale = m::select(m::isinf(sum), A(1 / kFar<A>), A(kFar<A>));
  const auto squared = [=](auto i) {
    const A z = x[i] * scale;
    return A(z * z);
  };
  return m::sqrt(A(over.template fold<sum_reduce>(squared))) / scale;
}

// gx = (g / y) x has the factor g / y in common. It is 0 at a length of 0.
template <class A> PB_HD A slope_of_length(A g, A y) { return m::select(y == A(0), A(m::select(g == g, A(0), g)), A(g / y)); }
// True if the factor has no place between the smallest normal number and the largest one. Then gx is g (x / y).
template <class A> PB_HD bool is_far_slope(A slope, A g, A y) {
  constexpr double kSmallest = sizeof(A) == sizeof(float) ? 0x1p-126 : 0x1p-1022;
  return (y != A(0)) & (g != A(0)) & ((m::abs(slope) < A(kSmallest)) | m::isinf(slope));
}

}  // namespace pb::kernels
