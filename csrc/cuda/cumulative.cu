// Running sums, products and extremes along an axis (scans), in the order of families/order.h. One launch computes the totals of the
// chains, which are scanned recursively in the same way, and a last launch runs each chain again, with the running total before it.
#include "cuda/copy.cuh"
#include "cuda/fold.cuh"
#include "families/cumulative.h"
#include "families/order.h"

namespace pb::cuda {
namespace {

using kernels::kOrderRun;

constexpr int64_t kNeighbours = 8;  // from this many neighbouring lines on, neighbouring threads run neighbouring lines
constexpr int kTileWarps = 4;       // warps per block if a warp runs the chains of one line
static_assert(kOrderRun == kWarp);

// x and y have the shape [outer, length, inner]. y is contiguous. x and y may share their memory.
struct Lines {
  const char* x;
  DType dtype;
  Axes outer, inner_axes;
  int64_t count, length, inner;
  int64_t step;  // bytes from element to element of x; negative in a scan from the end
  char* y;
  DType y_dtype;
  int64_t y_size, y_step;        // bytes
  int64_t chains = 0;            // of a line
  const void* before = nullptr;  // running totals of the chains, [outer, chains, inner]; null if no chain continues another
  void* totals = nullptr;        // receives the totals of the chains; if it is not null, y is not written
  Ratio by_inner, by_chains;
};

// A line, and the elements [first, first + n) of it that a thread or a warp runs.
template <class C> struct LineSegment {
  int64_t totals;  // the position of the line's first chain among all totals
  const char* x;
  char* y;
  int n;

  __device__ LineSegment(const Lines& l, int64_t o, int64_t j, int64_t first, int64_t most)
      : totals(o * l.chains * l.inner + j) {
    x = l.x + l.outer.offset(o) + l.inner_axes.offset(j) + first * l.step;
    const int64_t start = l.y_step < 0 ? l.length - 1 : 0;
    y = l.y + ((o * l.length + start) * l.inner + j) * l.y_size + first * l.y_step;
    n = int(l.length - first < most ? l.length - first : most);
  }
};

// The result so far in a chain, and with what comes before the chain.
template <class Op, class C> struct Chain {
  int64_t total;  // the position of the chain's total
  bool continues;
  C before{}, now{};

  __device__ Chain(const Lines& l, const LineSegment<C>& segment, int64_t chain)
      : total(segment.totals + chain * l.inner), continues(chain > 0 && l.before) {
    if (continues) before = static_cast<const C*>(l.before)[total - l.inner];
  }
  __device__ __forceinline__ C add(bool begins, C x) {
    now = begins ? x : Op()(now, x);
    return continues ? Op()(before, now) : now;
  }
};

// The number of elements that a thread reads before it uses them.
template <class C> constexpr int kBatch = std::is_same_v<C, int64_t> ? 4 : 8;

// Each thread runs one chain, and the next thread the same chain of the next line.
template <class Op, class C>
__global__ void __launch_bounds__(kThreads, 4) run_across(const __grid_constant__ Lines l) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= l.count * l.chains) return;
  const int64_t row = l.by_inner.divide(i), outer = l.by_chains.divide(row), number = row - outer * l.chains;
  LineSegment<C> segment(l, outer, i - row * l.inner, number * kOrderRun, kOrderRun);
  Chain<Op, C> chain(l, segment, number);
#pragma unroll 1
  for (int k = 0; k < segment.n; k += kBatch<C>) {
    Raw<C> raw[kBatch<C>];
#pragma unroll
    for (int b = 0; b < kBatch<C>; ++b, segment.x += l.step)
      if (k + b < segment.n) raw[b] = load_raw<C>(l.dtype, segment.x);
#pragma unroll
    for (int b = 0; b < kBatch<C>; ++b, segment.y += l.y_step)
      if (k + b < segment.n) {
        const C y = chain.add(k + b == 0, widen<C>(l.dtype, raw[b]));
        if (!l.totals) store_as<C>(l.y_dtype, segment.y, y);
      }
  }
  if (l.totals) static_cast<C*>(l.totals)[chain.total] = chain.now;
}

// Each warp runs 32 chains of one line. They are the rows of a tile: the lanes read and write it row by row, and lane r runs row r.
template <class Op, class C>
__global__ void __launch_bounds__(kTileWarps* int(kWarp), 4) run_along(const __grid_constant__ Lines l) {
  constexpr int kWidth = int(kOrderRun);
  __shared__ C tiles[kTileWarps][kWidth][kWidth + 1];
  const int lane = int(threadIdx.x % kWarp);
  const int64_t i = int64_t(blockIdx.x) * kTileWarps + threadIdx.x / kWarp, line = l.by_chains.divide(i);
  if (line >= l.count) return;  // i is the same for all lanes, so the whole warp returns
  const int64_t outer = l.by_inner.divide(line), first = (i - line * l.by_chains.length) * kWidth;
  LineSegment<C> segment(l, outer, line - outer * l.inner, first * kOrderRun, kOrderRun * kWidth);
  C(*const tile)[kWidth + 1] = tiles[threadIdx.x / kWarp];
  const int left = segment.n - lane;
  segment.x += lane * l.step, segment.y += lane * l.y_step;
#pragma unroll 1
  for (int row = 0; row < kWidth; row += kBatch<C>) {
    Raw<C> raw[kBatch<C>];
#pragma unroll
    for (int b = 0; b < kBatch<C>; ++b, segment.x += kWidth * l.step)
      if ((row + b) * kWidth < left) raw[b] = load_raw<C>(l.dtype, segment.x);
#pragma unroll
    for (int b = 0; b < kBatch<C>; ++b)
      if ((row + b) * kWidth < left) tile[row + b][lane] = widen<C>(l.dtype, raw[b]);
  }
  __syncwarp();
  const int n = segment.n - lane * kWidth < kWidth ? segment.n - lane * kWidth : kWidth;
  if (n > 0) {
    Chain<Op, C> chain(l, segment, first + lane);
#pragma unroll 4
    for (int k = 0; k < n; ++k) tile[lane][k] = chain.add(k == 0, tile[lane][k]);
    if (l.totals) static_cast<C*>(l.totals)[chain.total] = chain.now;
  }
  if (l.totals) return;
  __syncwarp();
#pragma unroll 4
  for (int row = 0; row < kWidth; ++row, segment.y += kWidth * l.y_step)
    if (row * kWidth < left) store_as<C>(l.y_dtype, segment.y, tile[row][lane]);
}

int64_t chains_of(int64_t length) { return (length + kOrderRun - 1) / kOrderRun; }

// Returns the number of times that two numbers are combined in a line.
int64_t combinations(int64_t length) {
  const int64_t chains = chains_of(length), apart = length - chains;
  return chains == 1 ? apart : 2 * apart + length - kOrderRun + combinations(chains);
}

template <class Op, class C> void run(Lines l, Scratch& scratch) {
  l.chains = chains_of(l.length);
  const auto launch = [&] {
    l.by_inner = Ratio(l.inner, l.count * l.chains);
    if (l.inner >= kNeighbours || l.chains == 1) {
      l.by_chains = Ratio(l.chains, l.count * l.chains);
      return start(run_across<Op, C>, blocks_for(l.count * l.chains), kThreads, 0, l);
    }
    const int64_t tiles = chains_of(l.chains);  // of a line
    l.by_chains = Ratio(tiles, l.count * tiles + kTileWarps);
    start(run_along<Op, C>, blocks_for(l.count * tiles, kTileWarps), kTileWarps * kWarp, 0, l);
  };
  if (l.chains > 1) {
    C* totals = scratch.take<C>(l.count * l.chains);
    l.totals = totals;
    launch();
    const DType dtype = storage_of(compute_of<C>);
    const int64_t size = sizeof(C), slice = l.inner * size;
    View outer = flat_view(totals, dtype, l.count / l.inner), inner = flat_view(totals, dtype, l.inner);
    outer.stride[0] = l.chains * slice;
    run<Op, C>({reinterpret_cast<char*>(totals), dtype, Axes(outer), Axes(inner), l.count, l.chains, l.inner, slice,
                reinterpret_cast<char*>(totals), dtype, size, slice},
               scratch);
    l.totals = nullptr, l.before = totals;
  }
  launch();
}

template <class Op> void cumulative(const Launch& launch) {
  const View &x = launch.in(), &y = launch.out();
  if (y.size() == 0) return;
  const int axis = int(launch.ints[0]);
  const bool reverse = launch.ints[1];
  const View outer = axes_of(x, 0, axis), inner = axes_of(x, axis + 1, x.ndim);
  const int64_t length = x.shape[axis], size = item_size(y.dtype), step = inner.size() * size;
  const Lines l{reverse ? x.data + (length - 1) * x.stride[axis] : x.data,
                x.dtype,
                Axes(outer),
                Axes(inner),
                outer.size() * inner.size(),
                length,
                inner.size(),
                reverse ? -x.stride[axis] : x.stride[axis],
                y.data,
                y.dtype,
                size,
                reverse ? -step : step};
  Scratch scratch;
  const Compute compute = compute_type(y.dtype);
  if (compute == Compute::f32) return run<Op, float>(l, scratch);
  if (compute == Compute::f64) return run<Op, double>(l, scratch);
  if constexpr (Op::kWide) {  // modulo 2^64, where int64 and uint64 give the same bits
    run<Op, int64_t>(l, scratch);
  } else {
    if (compute == Compute::i64) run<Op, int64_t>(l, scratch);
    else if (compute == Compute::u64) run<Op, uint64_t>(l, scratch);
    else run<Op, bool>(l, scratch);
  }
}

// Adds an entry to the table. The entry lives as long as the program.
struct AddCumulative {
  std::vector<const kernels::Cumulative*>& table;

  template <class Op> void operator()(Op entry, const char* name) const {
    static const kernels::Cumulative op = kernels::cumulative_of(entry, name, cumulative<Op>);
    table.push_back(&op);
  }
};

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void executed_cumulative(const Launch& launch, Counts& work) {
  const View& x = launch.in();
  if (x.size() == 0) return;
  work = {};
  const int64_t length = x.shape[launch.ints[0]];
  work.add(static_cast<const Cumulative*>(launch.table)->counts, x.size() / length * cuda::combinations(length));
}

const std::vector<const Cumulative*>& cumulatives() {
  static const std::vector<const Cumulative*> table = [] {
    std::vector<const Cumulative*> entries;
    each_cumulative(cuda::AddCumulative{entries});
    return entries;
  }();
  return table;
}

}  // namespace pb::kernels
