// Linear recurrences: one lane runs one line from step to step. It reads the numbers of several steps before it uses the first one,
// because only the multiply-adds have to wait for one another. Reading a and b and writing y is all the traffic.
#include "families/linear_recurrence.h"

#include "cuda/copy.cuh"
#include "cuda/element.cuh"
#include "cuda/multiply_add.cuh"

namespace pb::cuda {
namespace {

using kernels::LinearRecurrence;

constexpr int64_t kNeighbours = 8;  // from this many neighbouring lines on, neighbouring lanes read neighbouring elements
constexpr int kTileWarps = 2;       // warps per block if a warp reads tiles of 32 lines and 32 steps
constexpr int kBatch = 8;           // steps that a lane reads at once
constexpr int kTile = int(kWarp);

// Contiguous arrays (outer, length, inner). Distances are in elements: from a step to the next one, and from a step to the place of
// its coefficient.
struct Lines {
  char* y;
  const char *a, *b;
  DType dtype;
  int64_t count, length, inner, step, shift;
  Ratio by_inner;

  // Returns the place of the first step of a line.
  __device__ int64_t first(int64_t line) const {
    const int64_t outer = by_inner.divide(line);
    return (outer * length + (step < 0 ? length - 1 : 0)) * inner + line - outer * inner;
  }
};

template <class C> __global__ void __launch_bounds__(kThreads) recur_across(const __grid_constant__ Lines l) {
  const int64_t line = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (line >= l.count) return;
  const int size = size_of<C>(l.dtype);
  int64_t at = l.first(line);
  C y = load_as<C>(l.dtype, l.b + at * size);
  store_as<C>(l.dtype, l.y + at * size, y);
  at += l.step;
#pragma unroll 1
  for (int64_t t = 1; t < l.length; t += kBatch, at += kBatch * l.step) {
    Raw<C> a[kBatch], b[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
      if (t + k < l.length) {
        a[k] = load_raw<C>(l.dtype, l.a + (at + k * l.step + l.shift) * size);
        b[k] = load_raw<C>(l.dtype, l.b + (at + k * l.step) * size);
      }
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
      if (t + k < l.length) {
        C next = widen<C>(l.dtype, b[k]);
        multiply_add(next, widen<C>(l.dtype, a[k]), y);
        y = next;
        store_as<C>(l.dtype, l.y + (at + k * l.step) * size, y);
      }
  }
}

// Each warp runs 32 lines whose steps are neighbours. The lanes read a tile of 32 steps line by line, each lane runs its line, and the
// lanes write the tile line by line.
template <class C> __global__ void __launch_bounds__(kTileWarps* kTile) recur_along(const __grid_constant__ Lines l) {
  __shared__ C tiles[kTileWarps][2][kTile][kTile + 1];
  const int warp = int(threadIdx.x) / kTile, lane = int(threadIdx.x) % kTile, size = size_of<C>(l.dtype);
  const int64_t line = (int64_t(blockIdx.x) * kTileWarps + warp) * kTile;
  if (line >= l.count) return;  // this is the same for all lanes
  C(*const a)[kTile + 1] = tiles[warp][0];
  C(*const b)[kTile + 1] = tiles[warp][1];
  const int lines = int(l.count - line < kTile ? l.count - line : kTile);
  C y = 0;
#pragma unroll 1
  for (int64_t t = 0; t < l.length; t += kTile) {
    const int steps = int(l.length - t < kTile ? l.length - t : kTile);
    if (lane < steps)
#pragma unroll 4
      for (int r = 0; r < lines; ++r) {
        const int64_t at = l.first(line + r) + (t + lane) * l.step;
        b[r][lane] = load_as<C>(l.dtype, l.b + at * size);
        if (t + lane > 0) a[r][lane] = load_as<C>(l.dtype, l.a + (at + l.shift) * size);
      }
    __syncwarp();
    if (lane < lines)
      for (int k = 0; k < steps; ++k) {
        if (t + k > 0) multiply_add(b[lane][k], a[lane][k], y);
        y = b[lane][k];
      }
    __syncwarp();
    if (lane < steps)
#pragma unroll 4
      for (int r = 0; r < lines; ++r) store_as<C>(l.dtype, l.y + (l.first(line + r) + (t + lane) * l.step) * size, b[r][lane]);
    __syncwarp();
  }
}

template <class C> void run(const LinearRecurrence& r) {
  Scratch scratch;
  const auto [outer, length, inner] = r.split;
  const int64_t step = r.reverse ? -inner : inner, count = outer * inner;
  const Lines l{r.y.data,
                contiguous_as(r.y.dtype, r.a, scratch).data,
                contiguous_as(r.y.dtype, r.b, scratch).data,
                r.y.dtype,
                count,
                length,
                inner,
                step,
                r.late ? -step : 0,
                Ratio(inner, count)};
  if (inner >= kNeighbours || length == 1) return start(recur_across<C>, blocks_for(count), dim3(kThreads), 0, l);
  start(recur_along<C>, blocks_for(count, kTileWarps * kTile), dim3(kTileWarps * kTile), 0, l);
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_linear_recurrence(const Launch& launch) {
  const LinearRecurrence r(launch);
  if (r.y.size() == 0) return;
  if (r.y.dtype == DType::f64) cuda::run<double>(r);
  else cuda::run<float>(r);
}

}  // namespace pb::kernels
