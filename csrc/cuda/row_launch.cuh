// Launches of kernels that process whole rows. Depending on its length, a row gets some lanes of a warp, a warp, or a block.
#pragma once
#include "cuda/copy.cuh"
#include "cuda/rows.cuh"

namespace pb::cuda {

// At most kMaxWalk rows of kCount operands. The first of them is row `begin` of all rows.
template <int kCount> struct RowSet {
  uint32_t count;
  int64_t begin;
  Line line[kCount];
  Walk<kCount> walk;

  // lead: the operands without their last axis, collapsed.
  RowSet(const View* lead, const Line* lines, int64_t begin) : count(uint32_t(lead[0].size())), begin(begin), walk(lead) {
    for (int k = 0; k < kCount; ++k) line[k] = lines[k], line[k].data = lead[k].data;
  }
  __device__ __forceinline__ void lines(uint32_t row, Line (&of)[kCount]) const {
    int64_t offset[kCount];
    walk.offsets(row, offset);
#pragma unroll
    for (int k = 0; k < kCount; ++k) of[k] = line[k], of[k].data += offset[k];
  }
};

// Calls f(RowSet) for the rows of the operands. Nearly always one set holds all rows. There is no call if there are no rows.
template <int kCount, class F> void each_row_set(const View* operands, F&& f) {
  View lead[kCount];
  Line lines[kCount];
  for (int k = 0; k < kCount; ++k) {
    lead[k] = operands[k], lines[k] = Line(operands[k]);
    --lead[k].ndim;
  }
  if (lead[0].size() == 0) return;
  collapse(lead, kCount);
  int64_t begin = 0;
  each_part(lead, kCount, [&](const View* part) {
    f(RowSet<kCount>(part, lines, begin));
    begin += part[0].size();
  });
}

// Calls f(Tag<T>{}) with the type that stands for a float dtype in kernels over rows.
template <class F> void visit_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16: return f(Tag<AnyHalf>{});
    case DType::f32: return f(Tag<float>{});
    default: return f(Tag<double>{});
  }
}

// If the elements of a row are at least a sector apart, each of them costs the read of a whole sector. From kWorthCopying elements
// on, at_hand() therefore returns a contiguous copy, which is made in tiles.
constexpr int64_t kSector = 32, kWorthCopying = 64 * 1024;
inline View at_hand(const View& v, Scratch& scratch) {
  const int64_t step = v.stride[v.ndim - 1];
  const bool far = v.shape[v.ndim - 1] > 1 && (step >= kSector || step <= -kSector) && v.size() >= kWorthCopying;
  return far ? contiguous_as(v.dtype, v, scratch) : v;
}

// Applies the formula f to all rows. A team of threads holds its row in registers: some lanes of a warp if rows have at most 256
// elements, otherwise a block with a warp for each 256 elements.
//   reads     each operand once, 8 elements for each thread, all under way together
//   writes    each result once
//   waits     nowhere for other warps; in a block once for each reduction of the formula
template <class F, class T>
__global__ void __launch_bounds__(kMostThreads<acc_t<T>>, 1)
    run_in_registers(const __grid_constant__ RowPartition partition, const __grid_constant__ RowSet<F::kOperands> rows,
                     const __grid_constant__ F f) {
  const uint32_t row = team_number(partition);
  const bool active = row < rows.count;
  const RegisterRow<T> over(partition, active);
  Line line[F::kOperands];
  rows.lines(active ? row : 0, line);
  f(over, line, rows.begin + row);
}

// Applies f to rows that are too long for registers, each with a block of 512 threads. Every pass of f reads the row again.
template <class F, class T>
__global__ void __launch_bounds__(kMaxTeam, 1)
    streamed_rows(int64_t n, const __grid_constant__ RowSet<F::kOperands> rows, const __grid_constant__ F f) {
  const Streamed<T> over(n, threadIdx.x);
  Line line[F::kOperands];
  rows.lines(blockIdx.x, line);
  f(over, line, rows.begin + blockIdx.x);
}

// Applies f to rows of n elements of type T, in one launch.
template <class T, class F> void start_rows(int64_t n, const RowSet<F::kOperands>& rows, const F& f) {
  if (n > kLongestHeld<acc_t<T>>) return start(streamed_rows<F, T>, dim3(rows.count), kMaxTeam, 0, n, rows, f);
  const RowPartition partition(n);
  start(run_in_registers<F, T>, dim3(partition.blocks(rows.count)), partition.threads(), 0, partition, rows, f);
}

// Applies f to the rows of the operands. x has the length and the dtype of the rows.
template <class F> void run_rows(const View* operands, const View& x, const F& f) {
  View all[F::kOperands];
  Scratch scratch;
  for (int k = 0; k < F::kOperands; ++k) all[k] = at_hand(operands[k], scratch);
  each_row_set<F::kOperands>(all, [&](const RowSet<F::kOperands>& rows) {
    visit_float(x.dtype, [&](auto tag) { start_rows<typename decltype(tag)::type>(kernels::row_length(x), rows, f); });
  });
}

}  // namespace pb::cuda
