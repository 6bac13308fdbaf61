// The squared error of two arrays, and its gradient.
#include "families/squared_error.h"

#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/pool.h"
#include "cpu/rows.h"

namespace pb::cpu {
namespace {

constexpr int64_t kPiece = 64 * kOrderBlock;  // elements whose sum one thread computes: a power of two of blocks
constexpr int64_t kGrain = 4;                 // the fewest pieces per thread

template <class C, bool kLoss, bool kGradient> void run(const Launch& launch) {
  const View &x = launch.in(kGradient), &target = launch.in(kGradient + 1), &gx = launch.out(kLoss);
  const DType wide = storage_of(compute_of<C>);
  const int64_t n = x.size(), pieces = (n + kPiece - 1) / kPiece;
  Scratch scratch;
  const C* a = contiguous_as(wide, x, scratch).template as<C>();
  const C* b = contiguous_as(wide, target, scratch).template as<C>();
  C* const partial = kLoss ? scratch.take<C>(pieces) : nullptr;
  C twice = C(0), *to = nullptr;
  if constexpr (kGradient) {
    const C g = *contiguous_as(wide, launch.in(0), scratch).template as<C>();
    twice = C(2) * (g * C(kernels::share_of(launch, n)));
    to = gx.dtype == wide ? gx.as<C>() : scratch.take<C>(n);
  }
  parallel_for(pieces, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t begin = piece * kPiece, count = std::min(kPiece, n - begin);
      const C *u = a + begin, *v = b + begin;
      C* const w = to + (kGradient ? begin : 0);
      if constexpr (kLoss) {
        partial[piece] = reduce_row<sum_reduce, C>(count, [=](int64_t i) {
          const C d = u[i] - v[i];
          if constexpr (kGradient) w[i] = twice * d;
          return C(d * d);
        });
      } else {
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i) w[i] = twice * C(u[i] - v[i]);
      }
    }
  });
  if (kGradient && gx.dtype != wide) assign(gx, contiguous_view(to, wide, gx));
  if constexpr (kLoss) {
    reduce_pairs<sum_reduce>(pieces, 1, partial);
    C sum = n ? partial[0] : C(0);
    if (kernels::is_divided(launch, n)) sum = sum / C(double(n));
    assign(launch.out(), contiguous_view(&sum, wide, launch.out()));
  }
}

template <bool kLoss, bool kGradient> void run_any(const Launch& launch) {
  if (compute_type(launch.in(kGradient).dtype) == Compute::f32) run<float, kLoss, kGradient>(launch);
  else run<double, kLoss, kGradient>(launch);
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void run_squared_error(const Launch& launch) { cpu::run_any<true, false>(launch); }
void run_squared_error_pullback(const Launch& launch) { cpu::run_any<false, true>(launch); }
void run_squared_error_with_gradient(const Launch& launch) { cpu::run_any<true, true>(launch); }

void executed_squared_error(const Launch&, bool, bool, Counts&) {}

}  // namespace pb::kernels
