// Projects vectors of weights. Vectors are staged in contiguous memory of their compute type.
#include "families/projection.h"

#include <algorithm>
#include <vector>

#include "cpu/pool.h"
#include "cpu/reduce.h"
#include "cpu/scratch.h"
#include "cpu/squares.h"
#include "math/convert.h"

namespace pb::kernels {
namespace {

using namespace cpu;

constexpr int64_t kGrain = 16 * 1024;  // the fewest elements per thread

// Returns the largest absolute value that is a number.
template <class C> C largest_size(int64_t n, const C* __restrict x) {
  constexpr int64_t kLanes = 64 / sizeof(C);  // several maxima, because a single one would wait for each comparison
  C tops[kLanes] = {}, top = 0;
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      tops[lane] = m::select(m::abs(x[k + lane]) > tops[lane], m::abs(x[k + lane]), tops[lane]);
  for (; k < n; ++k) top = m::select(m::abs(x[k]) > top, m::abs(x[k]), top);
  for (const C each : tops) top = m::select(each > top, each, top);
  return top;
}

// Returns the sum of the squares of x times a power of two. Squares of float are exact in float64, where they neither overflow nor
// lose digits.
double scaled_squares(int64_t n, const float* x, float scale, float*) {
  return sum_of_squares<float>(n, x) * (double(scale) * double(scale));
}
double scaled_squares(int64_t n, const double* __restrict x, double scale, double* __restrict y) {
  for (int64_t k = 0; k < n; ++k) y[k] = x[k] * scale;
  return sum_of_squares<double>(n, y);
}

template <class C> void rescale(const ProjectedEntry& entry, int64_t n, const C* __restrict x, C* __restrict y) {
  const C scale = scale_to_one(largest_size(n, x));
  const Rescaling<C> rescaled(entry.limit(), scale, scaled_squares(n, x, scale, y), entry.most(), entry.shortened());
  for (int64_t k = 0; k < n; ++k) y[k] = rescaled(x[k]);
}

// mask: null, or the first byte of the vector's mask; the bytes are `step` apart.
template <class C>
void make_distribution(int64_t n, const C* __restrict x, const char* mask, int64_t step, C* __restrict y) {
  constexpr C kNone = -m::kInfinity<C>;
  C top = kNone;
  for (int64_t k = 0; k < n; ++k) {
    y[k] = element_of_distribution(x[k], !mask || mask[k * step]);
    top = m::select(y[k] > top, y[k], top);
  }
  for (int64_t k = 0; k < n; ++k) y[k] = y[k] - top;
  Threshold threshold;
  const auto above = [&] {
    int64_t count = 0;
    for (int64_t k = 0; k < n; ++k) count += threshold.is_below(y[k]);
    return count;
  };
  while (threshold.improves(above()))
    threshold.improve(
        reduce_row<sum_reduce, double>(n, [&](int64_t k) { return threshold.is_below(y[k]) ? double(y[k]) : double(-0.0); }));
  for (int64_t k = 0; k < n; ++k) y[k] = threshold.positive_part(y[k]);
}

// Calls f(T{}) with the type that stores elements of a floating dtype.
template <class F> void visit_float(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f16: return f(float16{});
    case DType::bf16: return f(bfloat16{});
    case DType::f32: return f(float{});
    default: return f(double{});
  }
}

constexpr int64_t kBundle = 16;  // a cache line of float elements

int64_t per_outer(const ProjectedEntry& entry) { return (entry.inner() + kBundle - 1) / kBundle; }
int64_t bundles_of(const ProjectedEntry& entry) { return entry.outer() * per_outer(entry); }

// Bundles of up to kBundle neighbouring vectors of one tensor, whose elements lie in the same cache lines if the vectors are strided.
template <class C> class Bundles {
 public:
  explicit Bundles(const ProjectedEntry& entry) : entry_(entry), n_(entry.length()), step_(entry.inner()) {
    const int64_t room = n_ * std::min(kBundle, step_);
    in_place_ = step_ == 1 && entry.weights().dtype == storage_of(compute_of<C>);
    staged_ = in_place_ ? nullptr : scratch_.take<C>(room);
    y_ = scratch_.take<C>(room), more_ = entry.delta().data || entry.average().data ? scratch_.take<C>(room) : nullptr;
    delta_ = entry.delta().data ? scratch_.take<C>(room) : nullptr;
  }

  void project(int64_t bundle) {
    const int64_t each = per_outer(entry_), inner = bundle % each * kBundle;
    first_ = bundle / each * n_ * step_ + inner;
    width_ = std::min(kBundle, step_ - inner);
    if (!in_place_) read(entry_.weights(), staged_);
    x_ = in_place_ ? entry_.weights().as<C>() + first_ : staged_;
    for (int64_t v = 0; v < width_; ++v) {
      const C* const x = x_ + v * n_;
      if (entry_.limit() == Limit::simplex) make_distribution(n_, x, mask(v), step_, y_ + v * n_);
      else rescale(entry_, n_, x, y_ + v * n_);
    }
    finish();
  }

 private:
  const char* mask(int64_t v) const { return entry_.mask().data ? entry_.mask().data + first_ + v : nullptr; }

  void finish() {
    const int64_t size = width_ * n_;
    visit_float(entry_.weights().dtype, [&](auto t) {
      using T = decltype(t);
      if constexpr (!std::is_same_v<T, C> && sizeof(T) == 2)
        for (int64_t k = 0; k < size; ++k) y_[k] = C(T(y_[k]));
    });
    if (entry_.mask().data) clear(y_);
    if (delta_) {  // The delta of an element that is not changed stays exact.
      read(entry_.before(), more_);
      read(entry_.delta(), delta_);
      for (int64_t k = 0; k < size; ++k) more_[k] = y_[k] - more_[k];
      for (int64_t k = 0; k < size; ++k) delta_[k] = y_[k] == x_[k] ? delta_[k] : more_[k];
      write(entry_.delta(), delta_);
    }
    if (entry_.average().data) {
      const Setting* const set = entry_.sets().as<Setting>() + first_ / entry_.member_size() * kSetSize;
      const Finish<C> finish(0, 0, set[kStep], set[kKeep]);
      read(entry_.old_average(), more_);
      for (int64_t k = 0; k < size; ++k) more_[k] = finish.averaged(more_[k], y_[k]);
      if (entry_.mask().data) clear(more_);
      write(entry_.average(), more_);
    }
    write(entry_.weights(), y_);
    if (entry_.low().data) write(entry_.low(), y_);
  }

  // Reads the bundle's elements of a tensor, vector by vector.
  void read(const View& from, C* __restrict to) const {
    visit_float(from.dtype, [&](auto t) {
      const auto* __restrict x = from.as<decltype(t)>() + first_;
      if (step_ == 1) return void(std::transform(x, x + n_, to, [](auto a) { return C(a); }));
      for (int64_t k = 0; k < n_; ++k)
        for (int64_t v = 0; v < width_; ++v) to[v * n_ + k] = C(x[k * step_ + v]);
    });
  }
  void write(const View& to, const C* __restrict from) const {
    visit_float(to.dtype, [&](auto t) {
      using T = decltype(t);
      T* __restrict x = to.as<T>() + first_;
      if (step_ == 1) return void(std::transform(from, from + n_, x, [](C a) { return m::narrow<T>(a); }));
      for (int64_t k = 0; k < n_; ++k)
        for (int64_t v = 0; v < width_; ++v) x[k * step_ + v] = m::narrow<T>(from[v * n_ + k]);
    });
  }
  // Sets the elements that the mask excludes to 0.
  void clear(C* x) const {
    for (int64_t v = 0; v < width_; ++v)
      for (int64_t k = 0; k < n_; ++k) x[v * n_ + k] = mask(v)[k * step_] ? x[v * n_ + k] : C(0);
  }

  const ProjectedEntry entry_;
  const int64_t n_, step_;  // the elements of a vector, and their distance
  Scratch scratch_;
  bool in_place_;  // the weights are read where they are
  const C* x_;
  C *staged_, *y_, *more_, *delta_;
  int64_t first_, width_;  // of the bundle: the position of its first element, and the number of vectors
};

template <class C> void project_bundles(const ProjectedEntry& entry, int64_t begin, int64_t end) {
  Bundles<C> bundles(entry);
  for (; begin < end; ++begin) bundles.project(begin);
}

}  // namespace

void project(const Launch& launch) {
  const int64_t entries = launch.ints[0];
  std::vector<int64_t> first(entries + 1);  // the number of the first bundle of each entry
  int64_t elements = 0;
  for (int64_t t = 0; t < entries; ++t) {
    const ProjectedEntry entry(launch, t);
    first[t + 1] = first[t] + bundles_of(entry);
    elements += entry.weights().size();
  }
  const int64_t all = first[entries], each = elements / std::max<int64_t>(1, all);
  parallel_for(all, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, each)), [&](int64_t begin, int64_t end) {
    for (int64_t t = std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1; begin < end; ++t) {
      const int64_t stop = std::min(end, first[t + 1]);
      const ProjectedEntry entry(launch, t);
      if (compute_type(entry.weights().dtype) == Compute::f32) project_bundles<float>(entry, begin - first[t], stop - first[t]);
      else project_bundles<double>(entry, begin - first[t], stop - first[t]);
      begin = stop;
    }
  });
}

// For each vector one addition less than there are terms. The sum of squares of float is scaled in the place of its terms.
void executed_project(const Launch& launch, Counts& work) {
  for (int64_t t = 0; t < launch.ints[0]; ++t) {
    const ProjectedEntry entry(launch, t);
    work.adds -= entry.vectors();
    if (entry.limit() != Limit::simplex && compute_type(entry.weights().dtype) == Compute::f32)
      work.multiplies += 2 * entry.vectors() - entry.weights().size();
  }
}

}  // namespace pb::kernels
