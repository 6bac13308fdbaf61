// Pools on the CPU. A row of windows is computed together: for each element of a window, in order, for all windows of the row.
#include <algorithm>

#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "families/pool.h"

namespace pb::cpu {
namespace {

using kernels::PoolAxis;
using kernels::PoolShape;

constexpr int64_t kGrain = 16 * 1024;  // the fewest elements of windows per thread

// Positions in a plane have the size of its elements, so that both fill as many lanes of a vector.
template <class C> using Position = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;

int64_t elements_of_row(const PoolShape& p) {
  const auto window = [](const PoolAxis& a) {
    return a.adaptive ? a.in / std::max<int64_t>(1, a.out) + 1 : std::min(a.size, a.in);
  };
  return std::max<int64_t>(1, p.w.out * window(p.h) * window(p.w));
}

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

// Finds the positions of the maxima of row i of windows of a plane. `top` is working memory for as many numbers. The maxima are read at
// these positions: compilers may compare by an instruction that flushes a denormal maximum to zero in some lanes, and not in others.
template <class C>
void maxima_of_row(const PoolShape& p, int64_t i, const C* __restrict plane, C* __restrict top, Position<C>* __restrict at) {
  std::fill_n(top, p.w.out, m::lowest<C>());
  std::fill_n(at, p.w.out, Position<C>(-1));
  for (int64_t row = p.h.first_tap(i); row < p.h.last_tap(i); ++row) {
    const int64_t from = p.h.start(i) + row * p.h.dilation;
    each_tap(p.w, [&](int64_t tap, int64_t first, int64_t last) {
      const int64_t shift = from * p.w.in + tap * p.w.dilation - p.w.padding;
      with_stride(p.w.stride, [&](auto stride) {
#pragma GCC ivdep
        for (int64_t j = first; j < last; ++j) {
          const C x = plane[shift + j * stride];
          const bool larger = (x > top[j]) | (x != x) | (at[j] < 0);
          top[j] = larger ? x : top[j];
          at[j] = larger ? Position<C>(shift + j * stride) : at[j];
        }
      });
    });
  }
}

// Returns the memory for a contiguous output in the type of the computation: the output's own, or a buffer.
template <class C> C* target(const View& out, Scratch& scratch) {
  return out.dtype == storage_of(compute_of<C>) ? out.as<C>() : scratch.take<C>(out.size());
}
template <class C> void finish(const View& out, C* computed) {
  const DType wide = storage_of(compute_of<C>);
  if (out.dtype != wide) assign(out, contiguous_view(computed, wide, out));
}
template <class C> const C* source(const View& x, Scratch& scratch) {
  return contiguous_as(storage_of(compute_of<C>), x, scratch).template as<C>();
}

// Calls f(plane, i) for each row of windows.
template <class F> void each_row(const PoolShape& p, const F& f) {
  parallel_for(p.planes * p.h.out, std::max<int64_t>(1, kGrain / elements_of_row(p)),
               [&](int64_t begin, int64_t end) { f(begin, end); });
}
template <class F> void each_plane(const PoolShape& p, const F& f) {
  parallel_for(p.planes, std::max<int64_t>(1, kGrain / elements_of_row(p) / std::max<int64_t>(1, p.h.out)), f);
}

// Calls f(k, plane, at) for each row of windows, with the positions of its maxima in the plane.
template <class C, class F> void each_row_of_maxima(const PoolShape& p, const C* x, const F& f) {
  each_row(p, [&](int64_t begin, int64_t end) {
    Scratch near;
    C* top = near.take<C>(p.w.out);
    Position<C>* at = near.take<Position<C>>(p.w.out);
    for (int64_t k = begin; k < end; ++k) {
      const C* plane = x + k / p.h.out * p.h.in * p.w.in;
      maxima_of_row(p, k % p.h.out, plane, top, at);
      f(k, plane, at);
    }
  });
}

template <class C> void max_pool(const Launch& launch) {
  const PoolShape p(launch, launch.in(), launch.out(), true);
  Scratch scratch;
  const C* x = source<C>(launch.in(), scratch);
  C* y = target<C>(launch.out(), scratch);
  each_row_of_maxima(p, x, [&](int64_t k, const C* plane, const Position<C>* at) {
    for (int64_t j = 0; j < p.w.out; ++j) y[k * p.w.out + j] = plane[at[j]];
  });
  finish(launch.out(), y);
}

template <class C> void max_pool_indices(const Launch& launch) {
  const PoolShape p(launch, launch.in(), launch.out(), true);
  Scratch scratch;
  const C* x = source<C>(launch.in(), scratch);
  int64_t* y = launch.out().as<int64_t>();
  each_row_of_maxima(p, x, [&](int64_t k, const C*, const Position<C>* at) { std::copy_n(at, p.w.out, y + k * p.w.out); });
}

template <class C> void max_pool_pullback(const Launch& launch) {
  const View &g = launch.in(0), &x = launch.in(1);
  const PoolShape p(launch, x, g, true);
  const int64_t plane = p.h.in * p.w.in;
  Scratch scratch;
  const C *from = source<C>(x, scratch), *cotangent = source<C>(g, scratch);
  C* gx = target<C>(launch.out(), scratch);
  each_plane(p, [&](int64_t begin, int64_t end) {
    Scratch near;
    C* top = near.take<C>(p.w.out);
    Position<C>* at = near.take<Position<C>>(p.w.out);
    for (int64_t k = begin; k < end; ++k) {
      C* to = gx + k * plane;
      std::fill_n(to, plane, C(0));
      for (int64_t i = 0; i < p.h.out; ++i) {
        maxima_of_row(p, i, from + k * plane, top, at);
        const C* row = cotangent + (k * p.h.out + i) * p.w.out;
        for (int64_t j = 0; j < p.w.out; ++j) to[at[j]] += row[j];
      }
    }
  });
  finish(launch.out(), gx);
}

// Adds up the windows of row i of a plane, and divides by the number of their elements.
template <class C> void means_of_row(const PoolShape& p, int64_t i, const C* __restrict plane, C* __restrict sum) {
  std::fill_n(sum, p.w.out, C(0));
  for (int64_t row = p.h.begin(i); row < p.h.end(i); ++row) {
    const C* __restrict x = plane + row * p.w.in;
    if (p.w.adaptive) {
      for (int64_t j = 0; j < p.w.out; ++j)
        for (int64_t at = p.w.begin(j); at < p.w.end(j); ++at) sum[j] += x[at];
      continue;
    }
    each_tap(p.w, [&](int64_t tap, int64_t first, int64_t last) {
      const int64_t shift = tap - p.w.padding;
      with_stride(p.w.stride, [&](auto stride) {
#pragma GCC ivdep
        for (int64_t j = first; j < last; ++j) sum[j] += x[shift + j * stride];
      });
    });
  }
  for (int64_t j = 0; j < p.w.out; ++j) sum[j] = sum[j] / C(p.divided_by(i, j));
}

template <class C> void avg_pool(const Launch& launch) {
  const PoolShape p(launch, launch.in(), launch.out(), false);
  Scratch scratch;
  const C* x = source<C>(launch.in(), scratch);
  C* y = target<C>(launch.out(), scratch);
  each_row(p, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) means_of_row(p, k % p.h.out, x + k / p.h.out * p.h.in * p.w.in, y + k * p.w.out);
  });
  finish(launch.out(), y);
}

// Adds `share`, the cotangents of a row of windows over their numbers of elements, to a row of a plane. The last element of each
// window comes first, so that an element of the plane gets its windows in order.
template <class C> void spread_row(const PoolAxis& w, const C* __restrict share, C* __restrict to) {
  if (w.adaptive) {
    for (int64_t j = 0; j < w.out; ++j)
      for (int64_t at = w.begin(j); at < w.end(j); ++at) to[at] += share[j];
    return;
  }
  each_tap_from_last(w, [&](int64_t tap, int64_t first, int64_t last) {
    const int64_t shift = tap - w.padding;
    with_stride(w.stride, [&](auto stride) {
#pragma GCC ivdep
      for (int64_t j = first; j < last; ++j) to[shift + j * stride] += share[j];
    });
  });
}

template <class C> void avg_unpool(const Launch& launch) {
  const PoolShape p(launch, launch.out(), launch.in(), false);
  const int64_t plane = p.h.in * p.w.in;
  Scratch scratch;
  const C* g = source<C>(launch.in(), scratch);
  C* gx = target<C>(launch.out(), scratch);
  each_plane(p, [&](int64_t begin, int64_t end) {
    Scratch near;
    C* share = near.take<C>(p.w.out);
    for (int64_t k = begin; k < end; ++k) {
      std::fill_n(gx + k * plane, plane, C(0));
      for (int64_t i = 0; i < p.h.out; ++i) {
        const C* row = g + (k * p.h.out + i) * p.w.out;
        for (int64_t j = 0; j < p.w.out; ++j) share[j] = row[j] / C(p.divided_by(i, j));
        for (int64_t at = p.h.begin(i); at < p.h.end(i); ++at) spread_row(p.w, share, gx + k * plane + at * p.w.in);
      }
    }
  });
  finish(launch.out(), gx);
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void run_max_pool(const Launch& launch) {
  cpu::visit_row(launch.in(), [&](auto tag) { cpu::max_pool<decltype(tag)>(launch); });
}
void run_max_pool_indices(const Launch& launch) {
  cpu::visit_row(launch.in(), [&](auto tag) { cpu::max_pool_indices<decltype(tag)>(launch); });
}
void run_max_pool_pullback(const Launch& launch) {
  cpu::visit_row(launch.in(), [&](auto tag) { cpu::max_pool_pullback<decltype(tag)>(launch); });
}
void run_avg_pool(const Launch& launch) {
  cpu::visit_row(launch.in(), [&](auto tag) { cpu::avg_pool<decltype(tag)>(launch); });
}
void run_avg_unpool(const Launch& launch) {
  cpu::visit_row(launch.in(), [&](auto tag) { cpu::avg_unpool<decltype(tag)>(launch); });
}

// Sums begin with 0.
void executed_avg_pool(const Launch& launch, Counts& work) {
  work.adds += launch.out().size();
  if (multiplies_sizes(PoolShape(launch, launch.in(), launch.out(), false))) work.multiplies += launch.out().size();
}
void executed_avg_unpool(const Launch& launch, Counts& work) {
  if (multiplies_sizes(PoolShape(launch, launch.out(), launch.in(), false))) work.multiplies += launch.in().size();
}

}  // namespace pb::kernels
