// Projects vectors of weights. Each vector is staged in contiguous memory of its compute type.
#include "families/projection.h"

#include <algorithm>

#include "cpu/pool.h"
#include "cpu/scratch.h"
#include "cpu/squares.h"
#include "cpu/stream.h"

namespace pb::kernels {
namespace {

using namespace cpu;

constexpr int64_t kGrain = 16 * 1024;  // the fewest elements per thread

template <class C> void rescale(const ProjectedEntry& entry, int64_t n, const C* __restrict x, C* __restrict y) {
  C top = 0;
  for (int64_t k = 0; k < n; ++k) top = m::select(m::abs(x[k]) > top, m::abs(x[k]), top);
  const C scale = scale_to_one(top);
  for (int64_t k = 0; k < n; ++k) y[k] = x[k] * scale;
  const Rescaling<C> rescaled(entry.limit(), scale, sum_of_squares<C>(n, y), entry.most(), entry.shortened());
  for (int64_t k = 0; k < n; ++k) y[k] = rescaled(x[k]);
}

// mask: null, or the first byte of the vector's mask; the bytes are `step` apart.
template <class C>
void make_distribution(int64_t n, const C* __restrict x, const char* mask, int64_t step, C* __restrict y) {
  constexpr C kNone = -m::kInfinity<C>;
  C top = kNone;
  for (int64_t k = 0; k < n; ++k) {
    y[k] = mask && !mask[k * step] ? kNone : x[k];
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

// The vectors of one tensor. A position is the number of the first element of a vector; the others follow at distances of step().
template <class C> class Vectors {
 public:
  explicit Vectors(const ProjectedEntry& entry) : entry_(entry) {
    const int64_t n = entry.length();
    x_ = scratch_.take<C>(n), y_ = scratch_.take<C>(n), more_ = scratch_.take<C>(n);
  }

  void project(int64_t vector) {
    const int64_t n = entry_.length(), step = entry_.inner(), at = vector / step * n * step + vector % step;
    const DType dtype = entry_.weights().dtype;
    read(entry_.weights(), at, x_);
    const char* const mask = entry_.mask().data ? entry_.mask().data + at : nullptr;
    if (entry_.limit() == Limit::simplex) make_distribution(n, x_, mask, step, y_);
    else rescale(entry_, n, x_, y_);
    if (dtype != storage_of(kCompute)) round_to(dtype);
    if (mask)
      for (int64_t k = 0; k < n; ++k) y_[k] = mask[k * step] ? y_[k] : C(0);
    if (entry_.delta().data) {  // The delta of an element that is not changed stays exact.
      C* const before = more_;
      read(entry_.before(), at, before);
      for (int64_t k = 0; k < n; ++k) before[k] = y_[k] - before[k];
      C* const delta = kept_ ? kept_ : kept_ = scratch_.take<C>(n);
      read(entry_.delta(), at, delta);
      for (int64_t k = 0; k < n; ++k) delta[k] = y_[k] == x_[k] ? delta[k] : before[k];
      write(entry_.delta(), at, delta);
    }
    if (entry_.average().data) average(at, mask, step);
    write(entry_.weights(), at, y_);
    if (entry_.low().data) write(entry_.low(), at, y_);
  }

 private:
  static constexpr Compute kCompute = compute_of<C>;

  void read(const View& from, int64_t at, C* to) const {
    const int64_t size = item_size(from.dtype);
    load(from.dtype, kCompute, from.data + at * size, entry_.inner() * size, entry_.length(), to);
  }
  void write(const View& to, int64_t at, const C* from) const {
    const int64_t size = item_size(to.dtype);
    store(kCompute, to.dtype, from, entry_.length(), to.data + at * size, entry_.inner() * size);
  }
  void round_to(DType dtype) {
    uint16_t* const rounded = reinterpret_cast<uint16_t*>(more_);
    store(kCompute, dtype, y_, entry_.length(), reinterpret_cast<char*>(rounded), 2);
    load(dtype, kCompute, reinterpret_cast<const char*>(rounded), 2, entry_.length(), y_);
  }
  void average(int64_t at, const char* mask, int64_t step) {
    const Setting* const set = entry_.sets().as<Setting>() + at / entry_.member_size() * kSetSize;
    const Finish<C> finish(0, 0, set[kStep], set[kKeep]);
    read(entry_.old_average(), at, more_);
    for (int64_t k = 0; k < entry_.length(); ++k)
      more_[k] = m::select(mask && !mask[k * step], C(0), finish.averaged(more_[k], y_[k]));
    write(entry_.average(), at, more_);
  }

  const ProjectedEntry entry_;
  Scratch scratch_;
  C *x_, *y_, *more_, *kept_ = nullptr;
};

template <class C> void project_all(const ProjectedEntry& entry) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, entry.length()));
  parallel_for(entry.vectors(), grain, [&](int64_t begin, int64_t end) {
    Vectors<C> vectors(entry);
    for (int64_t vector = begin; vector < end; ++vector) vectors.project(vector);
  });
}

}  // namespace

void project(const Launch& launch) {
  for (int64_t t = 0; t < launch.ints[0]; ++t) {
    const ProjectedEntry entry(launch, t);
    if (compute_type(entry.weights().dtype) == Compute::f32) project_all<float>(entry);
    else project_all<double>(entry);
  }
}

// For each vector one addition less than there are terms.
void executed_project(const Launch& launch, Counts& work) {
  for (int64_t t = 0; t < launch.ints[0]; ++t) work.adds -= ProjectedEntry(launch, t).vectors();
}

}  // namespace pb::kernels
