// Running sums, products and extremes along an axis (scans). A long line is cut into chunks, unless there are enough lines to keep
// the device busy with one thread per line. One launch computes the total of each chunk, the running totals are computed
// recursively in the same way, and a last launch scans each chunk again, starting from the running total before it.
#include "cuda/elements.cuh"
#include "families/cumulative.h"

namespace pb::cuda {
namespace {

constexpr int kWarps = int(kThreads / kWarp);
constexpr int kAlongSteps = 8;                                 // elements per lane
constexpr int64_t kAlongChunk = kAlongSteps * int64_t(kWarp);  // elements per warp if a warp scans along the line
constexpr int64_t kAcrossChunk = 64;       // elements per thread if neighbouring threads scan neighbouring lines
constexpr int64_t kManyLines = 32 * 1024;  // from this many neighbouring lines on, each thread takes a whole line
constexpr int64_t kShortLine = 16;         // the longest line that one thread takes whatever the strides
constexpr int64_t kNeighbours = 8;         // from this many neighbouring lines on, each line gets a thread

// x and y have the shape [outer, length, inner]. y is contiguous. x and y may share their memory.
struct Lines {
  const char* x;
  DType dtype;
  Axes outer, inner_axes;
  int64_t count, length, inner;
  int64_t step;  // bytes from element to element of x; negative in a scan from the end
  char* y;
  DType y_dtype;
  int64_t y_size, y_step;  // bytes
  int64_t chunk, chunks;
  const void* before = nullptr;  // running totals of the chunks, [outer, chunks, inner]; null if no chunk continues another
  void* totals = nullptr;        // receives the totals of the chunks; if it is not null, y is not written

  __device__ int64_t total_of(int64_t line, int64_t at) const { return (line / inner * chunks + at) * inner + line % inner; }
};

// A chunk of a line: its elements in x and y, and the running total that it continues.
template <class C> struct Chunk {
  const char* x;
  char* y;
  int64_t n;
  bool goes_on;
  C before{};

  __device__ Chunk(const Lines& l, int64_t line, int64_t at) {
    const int64_t o = line / l.inner, j = line - o * l.inner, first = at * l.chunk;
    x = l.x + l.outer.offset(o) + l.inner_axes.offset(j) + first * l.step;
    const int64_t start = l.y_step < 0 ? l.length - 1 : 0;
    y = l.y + ((o * l.length + start) * l.inner + j) * l.y_size + first * l.y_step;
    n = l.length - first < l.chunk ? l.length - first : l.chunk;
    goes_on = at > 0 && l.before;
    if (goes_on) before = static_cast<const C*>(l.before)[l.total_of(line, at - 1)];
  }
};

// Scans neighbouring lines: each thread scans one chunk in order, and the next thread the same chunk of the next line.
template <class Op, class C> __global__ void __launch_bounds__(kThreads, 4) run_across(const __grid_constant__ Lines l) {
  constexpr int kBatch = std::is_same_v<C, int64_t> ? 4 : 8;
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= l.count * l.chunks) return;
  const int64_t line = i / (l.inner * l.chunks) * l.inner + i % l.inner, at = i / l.inner % l.chunks;
  const Chunk<C> chunk(l, line, at);
  const Op op;
  bool goes_on = chunk.goes_on;
  C now = chunk.before;
  for (int64_t k = 0; k < chunk.n; k += kBatch) {
    Raw<C> raw[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (k + b < chunk.n) raw[b] = load_raw<C>(l.dtype, chunk.x + (k + b) * l.step);
    by_storage<C>(l.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (k + b < chunk.n) {
          const C x = from_raw<C, T>(raw[b]);
          now = goes_on ? op(now, x) : x;
          goes_on = true;
          if (!l.totals) store_as<C>(l.y_dtype, chunk.y + (k + b) * l.y_step, now);
        }
    });
  }
  if (l.totals) static_cast<C*>(l.totals)[l.total_of(line, at)] = now;
}

// Scans along the lines: each warp scans one chunk.
template <class Op, class C> __global__ void __launch_bounds__(kThreads, 4) run_along(const __grid_constant__ Lines l) {
  const int64_t i = int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= l.count * l.chunks) return;  // i is the same for all lanes, so the whole warp returns
  const int64_t line = i / l.chunks, at = i % l.chunks;
  const int lane = threadIdx.x % kWarp;
  const Chunk<C> chunk(l, line, at);
  const int n = int(chunk.n);
  const Op op;
  C a[kAlongSteps] = {};
  Raw<C> raw[kAlongSteps];
#pragma unroll
  for (int k = 0; k < kAlongSteps; ++k)
    if (k * int(kWarp) + lane < n) raw[k] = load_raw<C>(l.dtype, chunk.x + (k * int(kWarp) + lane) * l.step);
  by_storage<C>(l.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
#pragma unroll
    for (int k = 0; k < kAlongSteps; ++k)
      if (k * int(kWarp) + lane < n) a[k] = from_raw<C, T>(raw[k]);
  });
#pragma unroll
  for (int far = 1; far < int(kWarp); far *= 2)
#pragma unroll
    for (int k = 0; k < kAlongSteps; ++k) {
      const C other = C(__shfl_up_sync(kFull, a[k], unsigned(far)));
      if (lane >= far) a[k] = op(other, a[k]);
    }
  C before = chunk.before;
#pragma unroll
  for (int k = 0; k < kAlongSteps; ++k) {
    if (k > 0 || chunk.goes_on) a[k] = op(before, a[k]);
    before = shuffle_from(a[k], int(kWarp) - 1);
    const int e = k * int(kWarp) + lane;
    if (l.totals && e == n - 1) static_cast<C*>(l.totals)[l.total_of(line, at)] = a[k];
    if (!l.totals && e < n) store_as<C>(l.y_dtype, chunk.y + e * l.y_step, a[k]);
  }
}

// The split of lines into chunks.
struct Cut {
  bool across;
  int64_t chunk, chunks;

  Cut(int64_t count, int64_t length, int64_t inner) : across(inner >= kNeighbours || length <= kShortLine) {
    chunk = !across ? kAlongChunk : count >= kManyLines || length <= kShortLine ? length : kAcrossChunk;
    chunks = (length + chunk - 1) / chunk;
  }
};

// Returns the number of times that two numbers are combined. A warp combines in all lanes and steps, including those past the end
// of the line: in five shuffle rounds, and then once per step with what comes before the step.
int64_t combinations(int64_t count, int64_t length, int64_t inner) {
  constexpr int64_t kRounds = kAlongSteps * (5 * kWarp - 31), kSteps = (kAlongSteps - 1) * kWarp;
  const Cut cut(count, length, inner);
  // Combinations if no chunk continues the one before it.
  const int64_t apart = cut.across ? length - cut.chunks : cut.chunks * (kRounds + kSteps);
  // Combinations if every chunk but the first continues the one before it.
  const int64_t whole = apart + (cut.chunks - 1) * (cut.across ? 1 : int64_t(kWarp));
  if (cut.chunks == 1) return count * whole;
  return count * (apart + whole) + combinations(count, cut.chunks, inner);
}

template <class Op, class C> void run(Lines l, Scratch& scratch) {
  const Cut cut(l.count, l.length, l.inner);
  const bool across = cut.across;
  l.chunk = cut.chunk, l.chunks = cut.chunks;
  const auto launch = [&] {
    if (across) start(run_across<Op, C>, blocks_for(l.count * l.chunks), kThreads, 0, l);
    else start(run_along<Op, C>, blocks_for(l.count * l.chunks, kWarps), kThreads, 0, l);
  };
  if (l.chunks > 1) {
    C* totals = scratch.take<C>(l.count * l.chunks);
    l.totals = totals;
    launch();
    const DType dtype = storage_of(compute_of<C>);
    const int64_t size = sizeof(C), slice = l.inner * size;
    View outer = flat_view(totals, dtype, l.count / l.inner), inner = flat_view(totals, dtype, l.inner);
    outer.stride[0] = l.chunks * slice;
    run<Op, C>({reinterpret_cast<char*>(totals), dtype, Axes(outer), Axes(inner), l.count, l.chunks, l.inner, slice,
                reinterpret_cast<char*>(totals), dtype, size, slice, 0, 0},
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
                reverse ? -step : step,
                0,
                0};
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
  const int axis = int(launch.ints[0]);
  work = {};
  work.add(static_cast<const Cumulative*>(launch.table)->counts,
           cuda::combinations(x.size() / x.shape[axis], x.shape[axis], cuda::axes_of(x, axis + 1, x.ndim).size()));
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
