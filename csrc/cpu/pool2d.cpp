// Pools on the CPU. A row of windows is computed together: for each element of a window, in order, for all windows of the row, in
// full vectors: most planes have fewer windows in a row than two vectors have lanes. What vectors read beside the row is left out.
#include <algorithm>
#include <vector>

#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/pool.h"
#include "cpu/pool_windows.h"
#include "cpu/rows.h"

namespace pb::cpu {
namespace {

constexpr int64_t kGrain = 16 * 1024;  // the fewest elements of windows per thread

int64_t elements_of_row(const PoolShape& p) {
  const auto window = [](const PoolAxis& a) {
    return a.adaptive ? a.in / std::max<int64_t>(1, a.out) + 1 : std::min(a.size, a.in);
  };
  return std::max<int64_t>(1, p.w.out * window(p.h) * window(p.w));
}

// Finds the positions of the maxima of rows of windows. The maxima are read at these positions: compilers may compare by an
// instruction that flushes a denormal maximum to zero in some lanes, and not in others.
template <class C> class Maxima {
  using Ints = typename Register<C>::Ints;

 public:
  Maxima(const PoolShape& p, const C* all, Scratch& scratch)
      : p_(p), rows_(p, all, scratch), top_(scratch.take<C>(p.w.out)), at_(scratch.take<Position<C>>(whole<C>(p.w.out))) {
    for (int k = 0; k < kWidth<C>; ++k) steps_[k] = Position<C>(k * p.w.stride);
  }

  // Returns the positions in the plane of the maxima of row i of windows.
  const Position<C>* of_row(int64_t i, const C* plane) const {
    if (p_.w.out == 1) at_[0] = of_window(i, 0, plane);  // in a vector it would be alone
    else if (rows_)
      for (int64_t j = 0; j < p_.w.out; j += kWidth<C>) of_vector(i, j, plane);
    else of_row_of_any(i, plane);
    return at_;
  }

 private:
  template <class F> void each_row_inside(int64_t i, const F& f) const {
    for (int64_t row = p_.h.first_tap(i); row < p_.h.last_tap(i); ++row) f((p_.h.start(i) + row * p_.h.dilation) * p_.w.in);
  }
  // Returns the position of element number `tap` of window 0.
  int64_t place(int64_t row, int64_t tap) const { return row + tap * p_.w.dilation - p_.w.padding; }

  Position<C> of_window(int64_t i, int64_t j, const C* plane) const {
    C top = m::lowest<C>();
    int64_t at = -1;
    const int64_t first = p_.w.first_tap(j), last = p_.w.last_tap(j), start = j * p_.w.stride;
    each_row_inside(i, [&](int64_t row) {
      for (int64_t tap = first; tap < last; ++tap) {
        const int64_t here = place(row, tap) + start;
        const C x = plane[here];
        if (x > top || x != x || at < 0) top = x, at = here;
      }
    });
    return Position<C>(at);
  }
  void of_vector(int64_t i, int64_t j, const C* plane) const {
    Vector<C> top = broadcast(m::lowest<C>());
    Ints at = Ints{} - 1;
    each_row_inside(i, [&](int64_t row) {
      rows_.each_tap(plane + row, j, [&](int64_t tap, Vector<C> x, Ints inside) {
        const Ints larger = inside & ((x > top) | (x != x) | (at < 0));
        top = choose<C>(larger, x, top);
        at = larger ? steps_ + Position<C>(place(row, tap) + j * p_.w.stride) : at;
      });
    });
    std::memcpy(at_ + j, &at, sizeof at);
  }
  void of_row_of_any(int64_t i, const C* plane) const {
    std::fill_n(top_, p_.w.out, m::lowest<C>());
    std::fill_n(at_, p_.w.out, Position<C>(-1));
    each_row_inside(i, [&](int64_t row) {
      each_tap(p_.w, [&](int64_t tap, int64_t first, int64_t last) {
        for (int64_t j = first; j < last; ++j) {
          const int64_t at = place(row, tap) + j * p_.w.stride;
          const C x = plane[at];
          if (x > top_[j] || x != x || at_[j] < 0) top_[j] = x, at_[j] = Position<C>(at);
        }
      });
    });
  }

  const PoolShape& p_;
  const VectorRows<C> rows_;
  C* top_;
  Position<C>* at_;
  Ints steps_;  // between the windows of a vector
};

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
    const Maxima<C> maxima(p, x, near);
    for (int64_t k = begin; k < end; ++k) {
      const C* plane = x + k / p.h.out * p.h.in * p.w.in;
      f(k, plane, maxima.of_row(k % p.h.out, plane));
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
    const Maxima<C> maxima(p, from, near);
    for (int64_t k = begin; k < end; ++k) {
      C* to = gx + k * plane;
      std::fill_n(to, plane, C(0));
      for (int64_t i = 0; i < p.h.out; ++i) {
        const Position<C>* at = maxima.of_row(i, from + k * plane);
        const C* row = cotangent + (k * p.h.out + i) * p.w.out;
        for (int64_t j = 0; j < p.w.out; ++j) to[at[j]] += row[j];
      }
    }
  });
  finish(launch.out(), gx);
}

// What the means of windows are divided by.
template <class C> class Divisors {
 public:
  Divisors(const PoolShape& p, Scratch& scratch) : p_(p), widths_(scratch.take<double>(p.w.out)) {
    for (int64_t j = 0; j < p.w.out; ++j) widths_[j] = p.elements(p.w, j);
  }
  // Divides the numbers of the windows in row i.
  void divide(int64_t i, const C* __restrict x, C* __restrict y) const {
    const double height = p_.elements(p_.h, i), given = p_.divisor;
    const double* __restrict widths = widths_;
    if (given != 0)
      for (int64_t j = 0; j < p_.w.out; ++j) y[j] = x[j] / C(given);
    else
      for (int64_t j = 0; j < p_.w.out; ++j) y[j] = x[j] / C(height * widths[j]);
  }

 private:
  const PoolShape& p_;
  double* widths_;
};

// Adds up rows of windows, and divides by the number of their elements. Zeros in the place of padding change no sum.
template <class C> class Means {
 public:
  Means(const PoolShape& p, const C* all, Scratch& scratch)
      : p_(p), rows_(p, all, scratch), divisors_(p, scratch), sum_(scratch.take<C>(whole<C>(p.w.out))) {}

  void of_row(int64_t i, const C* plane, C* y) const {
    if (rows_) {
      for (int64_t j = 0; j < p_.w.out; j += kWidth<C>) of_vector(i, j, plane);
    } else {
      std::fill_n(sum_, p_.w.out, C(0));
      for (int64_t row = p_.h.begin(i); row < p_.h.end(i); ++row) add_row(plane + row * p_.w.in);
    }
    divisors_.divide(i, sum_, y);
  }

 private:
  void of_vector(int64_t i, int64_t j, const C* plane) const {
    Vector<C> sum = {};
    for (int64_t row = p_.h.begin(i); row < p_.h.end(i); ++row)
      rows_.each_tap(plane + row * p_.w.in, j, [&](int64_t, Vector<C> x, typename Register<C>::Ints inside) {
        sum = sum + choose<C>(inside, x, Vector<C>{});
      });
    store_vector(sum_ + j, sum);
  }
  void add_row(const C* x) const {
    each_tap(p_.w, [&](int64_t tap, int64_t first, int64_t last) {
      for (int64_t j = first; j < last; ++j) sum_[j] += x[tap - p_.w.padding + j * p_.w.stride];
    });
  }

  const PoolShape& p_;
  const VectorRows<C> rows_;
  const Divisors<C> divisors_;
  C* sum_;
};

// True if most lanes of a vector would have no window.
template <class C> bool is_short(const PoolAxis& w) { return w.adaptive || w.out <= kWidth<C> / 4; }

// Computes row i of the means of n planes at once, because each sum has to wait for its additions. x, y: the first of the planes.
template <class C, int64_t n> void row_of_planes(const PoolShape& p, int64_t i, const C* x, C* y) {
  const int64_t plane = p.h.in * p.w.in, windows = p.h.out * p.w.out;
  for (int64_t j = 0; j < p.w.out; ++j) {
    C sums[n] = {};
    for (int64_t row = p.h.begin(i); row < p.h.end(i); ++row)
      for (int64_t at = row * p.w.in + p.w.begin(j), last = row * p.w.in + p.w.end(j); at < last; ++at)
        for (int64_t l = 0; l < n; ++l) sums[l] += x[at + l * plane];
    for (int64_t l = 0; l < n; ++l) y[l * windows + i * p.w.out + j] = sums[l] / C(p.divided_by(i, j));
  }
}

// Computes eight planes at once, and those that remain one by one.
template <class C> void means_of_planes(const PoolShape& p, const C* x, C* y) {
  const int64_t plane = p.h.in * p.w.in, windows = p.h.out * p.w.out, eights = p.planes / 8;
  const int64_t units = (eights + p.planes % 8) * p.h.out;
  parallel_for(units, std::max<int64_t>(1, kGrain / elements_of_row(p) / 8), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t group = unit / p.h.out, i = unit % p.h.out;
      if (group < eights) row_of_planes<C, 8>(p, i, x + group * 8 * plane, y + group * 8 * windows);
      else row_of_planes<C, 1>(p, i, x + (eights * 7 + group) * plane, y + (eights * 7 + group) * windows);
    }
  });
}

template <class C> void avg_pool(const Launch& launch) {
  const PoolShape p(launch, launch.in(), launch.out(), false);
  Scratch scratch;
  const C* x = source<C>(launch.in(), scratch);
  C* y = target<C>(launch.out(), scratch);
  if (is_short<C>(p.w)) {
    means_of_planes(p, x, y);
    return finish(launch.out(), y);
  }
  each_row(p, [&](int64_t begin, int64_t end) {
    Scratch near;
    const Means<C> means(p, x, near);
    for (int64_t k = begin; k < end; ++k) means.of_row(k % p.h.out, x + k / p.h.out * p.h.in * p.w.in, y + k * p.w.out);
  });
  finish(launch.out(), y);
}

// An element of windows that is in the plane for those from `first` to before `last`.
struct Tap {
  int64_t number, first, last;
};
// Adds `share`, the cotangents of a row of windows over their numbers of elements, to a row of a plane. The last element of each
// window comes first, so that an element of the plane gets its windows in order.
template <class C> void spread_row(const PoolAxis& w, const std::vector<Tap>& from_last, const C* __restrict share,
                                   C* __restrict to) {
  if (w.adaptive) {
    for (int64_t j = 0; j < w.out; ++j)
      for (int64_t at = w.begin(j); at < w.end(j); ++at) to[at] += share[j];
    return;
  }
  with_stride(w.stride, [&](auto stride) {
    for (const Tap& tap : from_last) {
      const int64_t shift = tap.number - w.padding;
#pragma GCC ivdep
      for (int64_t j = tap.first; j < tap.last; ++j) to[shift + j * stride] += share[j];
    }
  });
}

template <class C> void avg_unpool(const Launch& launch) {
  const PoolShape p(launch, launch.out(), launch.in(), false);
  const int64_t plane = p.h.in * p.w.in;
  Scratch scratch;
  const C* g = source<C>(launch.in(), scratch);
  C* gx = target<C>(launch.out(), scratch);
  std::vector<Tap> from_last;
  if (!p.w.adaptive)
    each_tap_from_last(p.w, [&](int64_t tap, int64_t first, int64_t last) { from_last.push_back({tap, first, last}); });
  each_plane(p, [&](int64_t begin, int64_t end) {
    Scratch near;
    const Divisors<C> divisors(p, near);
    C* share = near.take<C>(p.w.out);
    for (int64_t k = begin; k < end; ++k) {
      std::fill_n(gx + k * plane, plane, C(0));
      for (int64_t i = 0; i < p.h.out; ++i) {
        divisors.divide(i, g + (k * p.h.out + i) * p.w.out, share);
        for (int64_t at = p.h.begin(i); at < p.h.end(i); ++at) spread_row(p.w, from_last, share, gx + k * plane + at * p.w.in);
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

// Sums begin with 0. Rows of windows are rounded up to full vectors, whose elements may be in the padding, and each window computes
// its number of elements in floating point.
void executed_avg_pool(const Launch& launch, Counts& work) {
  const PoolShape p(launch, launch.in(), launch.out(), false);
  cpu::visit_row(launch.in(), [&](auto tag) {
    using C = decltype(tag);
    const bool few = cpu::is_short<C>(p.w);
    if (few ? multiplies_sizes(p) : p.divisor == 0) work.multiplies += launch.out().size();
    work.adds += launch.out().size();
    if (few || !cpu::VectorRows<C>::fits(p.w)) return;
    work.adds = 0;
    for (int64_t i = 0; i < p.h.out; ++i)
      work.adds += p.planes * (p.h.end(i) - p.h.begin(i)) * p.w.size * cpu::whole<C>(p.w.out);
  });
}
void executed_avg_unpool(const Launch& launch, Counts& work) {
  if (PoolShape(launch, launch.out(), launch.in(), false).divisor == 0) work.multiplies += launch.in().size();
}

}  // namespace pb::kernels
