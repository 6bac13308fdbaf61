// Pools on a GPU. A thread computes one window, or in a pullback one element of a plane, from the windows that it belongs to. So each
// result is written once, and its terms are added in the order of the windows.
#include "cuda/copy.cuh"
#include "families/pool.h"

namespace pb::cuda {
namespace {

using kernels::PoolShape;

enum class Pool { maximum, position, mean };

struct Pools {
  PoolShape shape;
  DType dtype;
  const char *x, *g;
  char* out;
  int32_t* at;  // positions of maxima, in the pullback
  int64_t count;
  Ratio plane, row;  // positions of the results are divided by the elements of a plane, and by those of a row
};

struct Position {
  int64_t plane, i, j;
};
__device__ inline Position position_of(const Pools& p, int64_t k) {
  const int64_t plane = p.plane.divide(k), rest = k - plane * p.plane.length, i = p.row.divide(rest);
  return {plane, i, rest - i * p.row.length};
}

// Returns the position of the maximum in the plane, and sets top to the maximum.
template <class C> __device__ inline int64_t maximum_of(const Pools& p, const Position& o, C& top) {
  const auto &h = p.shape.h, &w = p.shape.w;
  const char* plane = p.x + o.plane * h.in * w.in * size_of<C>(p.dtype);
  int64_t at = -1;
  top = m::lowest<C>();
  const int64_t bottom = h.last_tap(o.i), left = w.first_tap(o.j), right = w.last_tap(o.j);
  for (int64_t row = h.first_tap(o.i); row < bottom; ++row) {
    const int64_t i = h.start(o.i) + row * h.dilation;
    for (int64_t tap = left; tap < right; ++tap) {
      const int64_t j = w.start(o.j) + tap * w.dilation;
      const C x = load_as<C>(p.dtype, plane + (i * w.in + j) * size_of<C>(p.dtype));
      if (x > top || x != x || at < 0) top = x, at = i * w.in + j;
    }
  }
  return at;
}

template <class C> __device__ inline C mean_of(const Pools& p, const Position& o) {
  const auto &h = p.shape.h, &w = p.shape.w;
  const char* plane = p.x + o.plane * h.in * w.in * size_of<C>(p.dtype);
  const int64_t top = h.begin(o.i), bottom = h.end(o.i), left = w.begin(o.j), right = w.end(o.j);
  C sum = C(0);
  for (int64_t i = top; i < bottom; ++i)
    for (int64_t j = left; j < right; ++j) sum = sum + load_as<C>(p.dtype, plane + (i * w.in + j) * size_of<C>(p.dtype));
  return sum / C(p.shape.divided_by(o.i, o.j, bottom - top, right - left));
}

template <class C, Pool kPool> __global__ void __launch_bounds__(kThreads) pool_windows(const __grid_constant__ Pools p) {
  const int64_t k = thread_number();
  if (k >= p.count) return;
  const Position o = position_of(p, k);
  if constexpr (kPool == Pool::mean) {
    store_as<C>(p.dtype, p.out + k * size_of<C>(p.dtype), mean_of<C>(p, o));
  } else {
    C top;
    const int64_t at = maximum_of<C>(p, o, top);
    if constexpr (kPool == Pool::maximum) store_as<C>(p.dtype, p.out + k * size_of<C>(p.dtype), top);
    else if (p.at) p.at[k] = int32_t(at);
    else reinterpret_cast<int64_t*>(p.out)[k] = at;
  }
}

// Adds up what the windows of an element of a plane give it: their cotangents if it is their maximum, or shares of them.
template <class C, Pool kPool> __global__ void __launch_bounds__(kThreads) pull_windows(const __grid_constant__ Pools p) {
  const int64_t k = thread_number();
  if (k >= p.count) return;
  const Position o = position_of(p, k);
  const auto &h = p.shape.h, &w = p.shape.w;
  const int64_t at = o.i * w.in + o.j;
  const int64_t bottom = h.last_of(o.i), left = w.first_of(o.j), right = w.last_of(o.j);
  C sum = C(0);
  for (int64_t i = h.first_of(o.i); i < bottom; ++i)
    for (int64_t j = left; j < right; ++j) {
      const int64_t window = (o.plane * h.out + i) * w.out + j;
      if constexpr (kPool == Pool::maximum) {
        if (p.at[window] != at) continue;
      }
      const C g = load_as<C>(p.dtype, p.g + window * size_of<C>(p.dtype));
      if constexpr (kPool == Pool::maximum) sum = sum + g;
      else sum = sum + g / C(p.shape.divided_by(i, j));
    }
  store_as<C>(p.dtype, p.out + k * size_of<C>(p.dtype), sum);
}

// Calls f(C()) with the type in which a dtype is computed.
template <class F> void visit_compute(DType dtype, F&& f) {
  if (dtype == DType::f64) f(double());
  else f(float());
}

// results: the operand with one element for each thread.
Pools pools_of(const PoolShape& shape, const View& results, bool windows) {
  const int64_t row = windows ? shape.w.out : shape.w.in, plane = row * (windows ? shape.h.out : shape.h.in);
  const int64_t count = shape.planes * plane;
  return {shape, results.dtype, nullptr, nullptr, results.data, nullptr, count, Ratio(plane, count), Ratio(row, count)};
}

template <Pool kPool> void pool(const Launch& launch) {
  const View& x = launch.in();
  Scratch scratch;
  Pools p = pools_of(PoolShape(launch, x, launch.out(), kPool != Pool::mean), launch.out(), true);
  p.dtype = x.dtype, p.x = contiguous_as(x.dtype, x, scratch).data;
  visit_compute(x.dtype, [&](auto tag) { start(pool_windows<decltype(tag), kPool>, blocks_for(p.count), kThreads, 0, p); });
}

void pull_maxima(const Launch& launch) {
  const View &g = launch.in(0), &x = launch.in(1);
  const PoolShape shape(launch, x, g, true);
  Scratch scratch;
  Pools windows = pools_of(shape, g, true), planes = pools_of(shape, launch.out(), false);
  windows.x = contiguous_as(x.dtype, x, scratch).data, planes.g = contiguous_as(g.dtype, g, scratch).data;
  windows.at = planes.at = scratch.take<int32_t>(windows.count);
  visit_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    start(pool_windows<C, Pool::position>, blocks_for(windows.count), kThreads, 0, windows);
    start(pull_windows<C, Pool::maximum>, blocks_for(planes.count), kThreads, 0, planes);
  });
}

void pull_means(const Launch& launch) {
  const View& g = launch.in();
  Scratch scratch;
  Pools p = pools_of(PoolShape(launch, launch.out(), g, false), launch.out(), false);
  p.g = contiguous_as(g.dtype, g, scratch).data;
  visit_compute(g.dtype,
                [&](auto tag) { start(pull_windows<decltype(tag), Pool::mean>, blocks_for(p.count), kThreads, 0, p); });
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_max_pool(const Launch& launch) { cuda::pool<cuda::Pool::maximum>(launch); }
void run_max_pool_indices(const Launch& launch) { cuda::pool<cuda::Pool::position>(launch); }
void run_max_pool_pullback(const Launch& launch) { cuda::pull_maxima(launch); }
void run_avg_pool(const Launch& launch) { cuda::pool<cuda::Pool::mean>(launch); }
void run_avg_unpool(const Launch& launch) { cuda::pull_means(launch); }

// Sums begin with 0, and each element of a plane divides the cotangents of its windows.
void executed_avg_pool(const Launch& launch, Counts& work) {
  work.adds += launch.out().size();
  if (multiplies_sizes(PoolShape(launch, launch.in(), launch.out(), false))) work.multiplies += launch.out().size();
}
void executed_avg_unpool(const Launch& launch, Counts& work) {
  work.special = work.adds;
  if (multiplies_sizes(PoolShape(launch, launch.out(), launch.in(), false))) work.multiplies += work.adds;
}

}  // namespace pb::kernels
