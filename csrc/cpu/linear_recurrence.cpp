// Linear recurrences on the CPU. Threads share the lines. A step waits for the one before it, so several lines advance together.
#include "families/linear_recurrence.h"

#include <algorithm>

#include "cpu/operands.h"
#include "cpu/pool.h"
#include "cpu/registers.h"

namespace pb::cpu {
namespace {

using kernels::LinearRecurrence;

constexpr int64_t kGrain = 16 * 1024;  // the fewest elements per thread
constexpr int64_t kStrip = 512;        // the most columns that advance together, so that their last step stays in the L1 cache
constexpr int kRowsTogether = 8;

// The arrays of a launch in the type of the computation. A step is `step` elements after the one before it, and its coefficient
// `shift` elements from its own place.
template <class C> struct Walk {
  C* y;
  const C *a, *b;
  int64_t length, step, shift;

  // Runs neighbouring columns; `first` is the place of the first step of the first column.
  void columns(int64_t first, int64_t count) const {
    C* to = y + first;
    const C *by = a + first + shift, *add = b + first;
    std::copy_n(add, count, to);
    for (int64_t t = 1; t < length; ++t) {
      const C* const before = to;
      to += step, by += step, add += step;
#pragma GCC ivdep
      for (int64_t j = 0; j < count; ++j) to[j] = multiply_add_number(by[j], before[j], add[j]);
    }
  }
  // Runs rows; `first` is the place of the first step of the first row.
  template <int kRows> void rows(int64_t first) const {
    C now[kRows];
    for (int r = 0; r < kRows; ++r) now[r] = y[first + r * length] = b[first + r * length];
    for (int64_t t = 1, at = first + step; t < length; ++t, at += step)
      for (int r = 0; r < kRows; ++r) {
        const int64_t i = at + r * length;
        now[r] = y[i] = multiply_add_number(a[i + shift], now[r], b[i]);
      }
  }
};

template <class C> void run(const Launch& launch, const LinearRecurrence& r) {
  const auto& [outer, length, inner] = r.split;
  Operands<C> all(launch);
  const C *const a = all.in(0), *const b = all.in(1);
  const int64_t step = r.reverse ? -inner : inner, last = r.reverse ? (length - 1) * inner : 0;
  const Walk<C> walk{all.y, a, b, length, step, r.late ? -step : 0};
  if (inner == 1) {
    const int64_t bundles = (outer + kRowsTogether - 1) / kRowsTogether;
    parallel_for(bundles, std::max<int64_t>(1, kGrain / (length * kRowsTogether)), [&](int64_t begin, int64_t end) {
      int64_t row = begin * kRowsTogether;
      const int64_t stop = std::min(outer, end * kRowsTogether);
      for (; row + kRowsTogether <= stop; row += kRowsTogether) walk.template rows<kRowsTogether>(row * length + last);
      for (; row < stop; ++row) walk.template rows<1>(row * length + last);
    });
  } else {
    const int64_t strips = (inner + kStrip - 1) / kStrip;
    parallel_for(outer * strips, std::max<int64_t>(1, kGrain / (length * std::min(kStrip, inner))),
                 [&, inner = inner, length = length](int64_t begin, int64_t end) {
                   for (int64_t unit = begin; unit < end; ++unit) {
                     const int64_t column = unit % strips * kStrip;
                     walk.columns(unit / strips * length * inner + last + column, std::min(kStrip, inner - column));
                   }
                 });
  }
  all.finish();
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void run_linear_recurrence(const Launch& launch) {
  const LinearRecurrence r(launch);
  if (r.y.size() == 0) return;
  if (r.y.dtype == DType::f64) cpu::run<double>(launch, r);
  else cpu::run<float>(launch, r);
}

}  // namespace pb::kernels
