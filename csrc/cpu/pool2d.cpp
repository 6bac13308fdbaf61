// Pools on the CPU. A row of windows is computed together: for each element of a window, in order, for all windows of the row, in
// full vectors: most planes have fewer windows in a row than two vectors have lanes. What vectors read beside the row is left out.
#include <algorithm>
#include <vector>

#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/vector.h"
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

template <class C, size_t... K> Vector<C> even_lanes(Vector<C> a, Vector<C> b, std::index_sequence<K...>) {
  return pick_lanes<int(2 * K)...>(a, b);
}
// Returns x[0], x[stride], x[2 stride], .... Stride 2 reads one element more.
template <class C, class Stride> Vector<C> strided(const C* x, Stride stride) {
  if constexpr (std::is_same_v<Stride, std::integral_constant<int64_t, 1>>) return load_vector(x);
  else if constexpr (std::is_same_v<Stride, std::integral_constant<int64_t, 2>>)
    return even_lanes<C>(load_vector(x), load_vector(x + kWidth<C>), std::make_index_sequence<kWidth<C>>());
  Vector<C> v;
  for (int k = 0; k < kWidth<C>; ++k) v[k] = x[k * stride];
  return v;
}

// Reads elements of full vectors of windows, some of which may lie beside the row or its plane.
template <class C> class VectorRows {
 public:
  using Ints = typename Register<C>::Ints;

  // all: the elements of all planes. Windows with sizes, strides or dilations that are much larger than the plane are not read so.
  VectorRows(const PoolShape& p, const C* all, Scratch& scratch)
      : w_(p.w), all_(all), size_(p.planes * p.h.in * p.w.in), windows_(whole<C>(p.w.out)) {
    const int64_t most = 4 * w_.in + 4096;
    if (w_.adaptive || w_.size > most || w_.dilation > most || w_.stride > most || w_.padding > most || w_.out > most) return;
    length_ = windows_ * w_.stride + (w_.size - 1) * w_.dilation;
    if (length_ > 4 * most || w_.size * windows_ > 16 * most) return;
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
    if (rows_)
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
    for (int64_t j = 0; j < p.w.out; ++j) widths_[j] = size(p.w, j);
  }
  // Divides the numbers of the windows in row i.
  void divide(int64_t i, const C* __restrict x, C* __restrict y) const {
    const double height = size(p_.h, i), given = p_.divisor;
    const double* __restrict widths = widths_;
    if (given != 0)
      for (int64_t j = 0; j < p_.w.out; ++j) y[j] = x[j] / C(given);
    else
      for (int64_t j = 0; j < p_.w.out; ++j) y[j] = x[j] / C(height * widths[j]);
  }

 private:
  double size(const PoolAxis& a, int64_t o) const { return double(p_.padded ? a.stop(o) - a.start(o) : a.end(o) - a.begin(o)); }

  const PoolShape& p_;
  double* widths_;
};

// Adds up rows of windows, and divides by the number of their elements. Zeros in the place of padding change no sum.
template <class C> class Means {
 public:
  Means(const PoolShape& p, const C* all, Scratch& scratch)
      : p_(p), rows_(p, all, scratch), divisors_(p, scratch), sum_(scratch.take<C>(whole<C>(p.w.out))) {}

  void of_row(int64_t i, const C* plane, C* y) const {
    std::fill_n(sum_, p_.w.out, C(0));
    if (rows_)
      for (int64_t j = 0; j < p_.w.out; j += kWidth<C>) of_vector(i, j, plane);
    else
      for (int64_t row = p_.h.begin(i); row < p_.h.end(i); ++row) add_row(plane + row * p_.w.in);
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
    if (p_.w.adaptive) {
      for (int64_t j = 0; j < p_.w.out; ++j)
        for (int64_t at = p_.w.begin(j); at < p_.w.end(j); ++at) sum_[j] += x[at];
      return;
    }
    each_tap(p_.w, [&](int64_t tap, int64_t first, int64_t last) {
      for (int64_t j = first; j < last; ++j) sum_[j] += x[tap - p_.w.padding + j * p_.w.stride];
    });
  }

  const PoolShape& p_;
  const VectorRows<C> rows_;
  const Divisors<C> divisors_;
  C* sum_;
};

template <class C> void avg_pool(const Launch& launch) {
  const PoolShape p(launch, launch.in(), launch.out(), false);
  Scratch scratch;
  const C* x = source<C>(launch.in(), scratch);
  C* y = target<C>(launch.out(), scratch);
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

// Sums begin with 0.
void executed_avg_pool(const Launch& launch, Counts& work) {
  work.adds += launch.out().size();
  if (multiplies_sizes(PoolShape(launch, launch.in(), launch.out(), false))) work.multiplies += launch.out().size();
}
void executed_avg_unpool(const Launch& launch, Counts& work) {
  if (multiplies_sizes(PoolShape(launch, launch.out(), launch.in(), false))) work.multiplies += launch.in().size();
}

}  // namespace pb::kernels
