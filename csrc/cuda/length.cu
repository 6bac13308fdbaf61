// Lengths and their pullback on a GPU.
#include "cuda/copy.cuh"
#include "cuda/rows.cuh"
#include "families/executed.h"
#include "families/length.h"

namespace pb::cuda {
namespace {

// The elements of one cell, in their order, as a walk reads them.
template <class C> struct Cell {
  const char* data;
  const Axes* reduced;
  __device__ C operator[](ElementPosition<int64_t> i) const {
    return *reinterpret_cast<const C*>(data + reduced->offset(i.column));
  }
};

struct Measured {
  void* y;
  int64_t results, rows, width;
  const char* data;
  Axes outer, inner, reduced;
};

// Turns sums of squares into lengths. Each thread of a block has one result. Then the block measures again what has squares that are
// too large or too small, one cell at a time.
template <class T> __global__ void __launch_bounds__(kMaxTeam) measure(const __grid_constant__ Measured f) {
  const int64_t first = int64_t(blockIdx.x) * kMaxTeam, result = first + threadIdx.x;
  T* const y = static_cast<T*>(f.y);
  __shared__ T sums[kMaxTeam];
  const T least = kernels::least_sum<T>(f.rows), sum = result < f.results ? y[result] : T(1);
  const bool far = result < f.results && kernels::is_far(sum, least);
  sums[threadIdx.x] = far ? sum : T(1);
  if (result < f.results && !far) y[result] = m::sqrt(sum);
  if (!__syncthreads_or(far)) return;
  const Streamed<T> over(f.rows, threadIdx.x);
  for (int k = 0; k < int(kMaxTeam) && first + k < f.results; ++k) {
    if (sums[k] == T(1)) continue;
    const int64_t i = first + k, row = i / f.width;
    const Cell<T> x{f.data + f.outer.offset(row) + f.inner.offset(i - row * f.width), &f.reduced};
    const T length = kernels::length_of_far(over, x, sums[k]);
    if (threadIdx.x == 0) y[i] = length;
  }
}

struct Pulled {
  char* gx;
  const char *g, *x, *y;
};

// One thread per element.
template <class T>
__global__ void __launch_bounds__(kThreads)
    pull_lengths(uint32_t count, const __grid_constant__ Pulled f, const __grid_constant__ Walk<4> walk) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  int64_t offset[4];
  walk.offsets(i, offset);
  const T g = *reinterpret_cast<const T*>(f.g + offset[1]), x = *reinterpret_cast<const T*>(f.x + offset[2]),
          y = *reinterpret_cast<const T*>(f.y + offset[3]), slope = kernels::slope_of_length(g, y);
  *reinterpret_cast<T*>(f.gx + offset[0]) = kernels::is_far_slope(slope, g, y) ? T(g * T(x / y)) : T(slope * x);
}

template <class T> void length_as(const Launch& launch) {
  const View &x = launch.in(), &out = launch.out();
  Scratch scratch;
  kernels::sum_squares(out, contiguous_view(scratch.take<T>(x.size()), x.dtype, x), x, launch.ints[0]);
  const kernels::Matrix m = kernels::matrix_of(x, launch.ints[0]);
  const Measured f{out.data, out.size(), m.rows, m.width, x.data, Axes(m.outer), Axes(m.inner), Axes(m.reduced)};
  start(measure<T>, blocks_for(f.results, kMaxTeam), kMaxTeam, 0, f);
}

template <class T> void length_pullback_as(const Launch& launch) {
  View views[] = {launch.out(), launch.in(0), launch.in(1), launch.in(2)};
  for (View& v : views) broadcast_to(v, launch.out().ndim, launch.out().shape);
  collapse(views, 4);
  each_part(views, 4, [](View* part) {
    const int64_t count = part[0].size();
    start(pull_lengths<T>, blocks_for(count), kThreads, 0, uint32_t(count),
          Pulled{part[0].data, part[1].data, part[2].data, part[3].data}, Walk<4>(part));
  });
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_length(const Launch& launch) {
  run_wide<cuda::Scratch>(launch, cuda::length_as<float>, cuda::length_as<double>, cuda::assign);
}
void run_length_pullback(const Launch& launch) {
  run_wide<cuda::Scratch>(launch, cuda::length_pullback_as<float>, cuda::length_pullback_as<double>, cuda::assign);
}
// Each thread computes the least sum.
void executed_length(const Launch& launch, Counts& work) {
  constexpr int64_t kTeam = cuda::kMaxTeam;
  work.multiplies += (launch.out().size() + kTeam - 1) / kTeam * kTeam;
}
// Each thread divides.
void executed_length_pullback(const Launch& launch, Counts& work) { work.special = launch.out().size(); }

}  // namespace pb::kernels
