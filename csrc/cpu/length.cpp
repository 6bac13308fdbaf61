// Lengths and their pullback. Cells whose squares are too large or too small are measured again, one at a time.
#include "families/length.h"

#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/rows.h"

namespace pb::cpu {
namespace {

using kernels::is_far, kernels::is_far_slope, kernels::Matrix;

// Returns the bytes from the first element of v to element i.
int64_t offset(const View& v, int64_t i) {
  int64_t at = 0;
  for (int d = v.ndim - 1; d >= 0; i /= v.shape[d--]) at += i % v.shape[d] * v.stride[d];
  return at;
}

// The elements of one cell, in their order.
template <class C> struct Cell {
  char* data;
  const View* reduced;

  Cell(const Matrix& m, int64_t result)
      : data(m.outer.data + offset(m.outer, result / m.width) + offset(m.inner, result % m.width)), reduced(&m.reduced) {}
  C& operator[](int64_t i) const { return *reinterpret_cast<C*>(data + offset(*reduced, i)); }
};

template <class C> void length_as(const Launch& launch) {
  const View &x = launch.in(), &out = launch.out();
  {
    Scratch scratch;
    const DType dtype = x.dtype;
    kernels::sum_squares(out, contiguous_view(scratch.take<C>(x.size()), dtype, x), x, launch.ints[0]);
  }
  const Matrix m = kernels::matrix_of(x, launch.ints[0]);
  const C least = kernels::least_sum<C>(m.rows);
  C* const y = out.as<C>();
  parallel_for(out.size(), kRowGrain, [&](int64_t begin, int64_t end) {
    C far = C(0);  // of the type of y, so that compilers vectorize the loop
    for (int64_t i = begin; i < end; ++i) far = m::select(is_far(y[i], least), C(1), far);
    if (far == C(0)) {
      for (int64_t i = begin; i < end; ++i) y[i] = m::sqrt(y[i]);
      return;
    }
    for (int64_t i = begin; i < end; ++i)
      y[i] = is_far(y[i], least) ? kernels::length_of_far(Loop{m.rows}, Cell<C>(m, i), y[i]) : C(m::sqrt(y[i]));
  });
}

template <class C> void length_pullback_as(const Launch& launch) {
  const View &gx = launch.out(), &x = launch.in(1);
  if (gx.size() == 0) return;
  const int64_t cells = launch.in(2).size();
  Scratch scratch;
  const C* const g = contiguous_as(x.dtype, launch.in(0), scratch).template as<C>();
  const C* const y = contiguous_as(x.dtype, launch.in(2), scratch).template as<C>();
  C* const slope = scratch.take<C>(cells);
  C far = C(0);
  for (int64_t i = 0; i < cells; ++i) {
    slope[i] = kernels::slope_of_length(g[i], y[i]);
    far = m::select(is_far_slope(slope[i], g[i], y[i]), C(1), far);
  }
  View factor = contiguous_view(slope, x.dtype, launch.in(2));
  broadcast_to(factor, gx.ndim, gx.shape);
  kernels::multiply(gx, factor, x);
  if (far == C(0)) return;
  const int64_t mask = kernels::axes_of_one(launch.in(2));
  const Matrix to = kernels::matrix_of(gx, mask), from = kernels::matrix_of(x, mask);
  // The cells of both are in the order of y, but the two may be cut into cells of several columns in different ways.
  parallel_for(cells, std::max<int64_t>(1, kRowGrain / to.rows), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (!is_far_slope(slope[i], g[i], y[i])) continue;
      const Cell<C> out(to, i), in(from, i);
      for (int64_t k = 0; k < to.rows; ++k) out[k] = g[i] * (in[k] / y[i]);
    }
  });
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void run_length(const Launch& launch) {
  run_wide<cpu::Scratch>(launch, cpu::length_as<float>, cpu::length_as<double>, cpu::assign);
}
void run_length_pullback(const Launch& launch) {
  run_wide<cpu::Scratch>(launch, cpu::length_pullback_as<float>, cpu::length_pullback_as<double>, cpu::assign);
}
void executed_length(const Launch&, Counts& work) { ++work.multiplies; }
void executed_length_pullback(const Launch&, Counts&) {}

}  // namespace pb::kernels
