// Scatters: the order of updates, and the choice of kernels.
#include "cuda/scatter.cuh"

#include "cuda/radix_sort.cuh"
#include "families/matmul.h"

namespace pb::cuda::scattering {
namespace {

using kernels::AxisSplit;
using kernels::Negative;
using kernels::Scatter;

constexpr int64_t kRanked = 4096;    // up to this many indices are sorted by counting the indices that come before each
constexpr int kRankers = 8;          // threads that count for one index
constexpr int64_t kLongList = 1024;  // columns with at least this many indices are sorted one by one
constexpr int64_t kMaxKey = 0xfffffffe, kMaxList = int64_t{1} << 31;

// ---- keys: the target that each index refers to, or `none`

struct Keys {
  Indices indices;
  Ratio columns, count;  // with own lists or flat keys: the number of columns, and of indices per column
  bool flat;             // true if targets are single elements, numbered across all columns
  bool own_lists;
  uint32_t none;

  __device__ int64_t row(int64_t r) const { return r; }
  __device__ uint32_t item(int64_t row, int64_t i) const {
    int64_t place = i, outer = 0, column = 0;
    if (own_lists) {
      outer = columns.divide(row), column = row - outer * columns.length;
      place = (outer * count.length + i) * columns.length + column;
    }
    const int64_t at = indices.position(place);
    if (at < 0) return none;
    if (!flat) return uint32_t(at);
    const int64_t s = columns.divide(i);
    return uint32_t((count.divide(s) * indices.bounds.length + at) * columns.length + i - s * columns.length);
  }
};

// Sorts keys by counting: the position of an index is the number of indices that come before it. kRankers threads count for each
// index.
__global__ void __launch_bounds__(kThreads)
    rank_keys(int n, uint32_t* sorted, uint32_t* positions, const __grid_constant__ Keys keys) {
  __shared__ uint32_t key[kRanked];
  for (int i = int(threadIdx.x); i < n; i += int(kThreads)) key[i] = keys.item(0, i);
  __syncthreads();
  const int i = int(blockIdx.x * (kThreads / kRankers) + threadIdx.x / kRankers);
  const uint32_t own = i < n ? key[i] : 0;
  int before = 0;
  if (i < n)
    for (int k = int(threadIdx.x % kRankers); k < n; k += kRankers) before += key[k] < own || (key[k] == own && k < i);
#pragma unroll
  for (int half = kRankers / 2; half > 0; half /= 2) before += __shfl_xor_sync(kFull, before, half);
  if (i < n && threadIdx.x % kRankers == 0) sorted[before] = own, positions[before] = uint32_t(i);
}

int bits_of(int64_t largest) {
  int bits = 1;
  while (largest >> bits) ++bits;
  return bits;
}

Sorted sort_updates(const Keys& keys, const Places& places, int pack, Scratch& scratch) {
  const int64_t lists = places.own_lists ? places.rows : 1, n = places.n;
  if (places.length > kMaxKey || n > kMaxList) throw Failure("more than 2^31 indices, or an axis of 2^32 and more");
  auto* sorted = scratch.take<uint32_t>(lists * n);
  auto* positions = scratch.take<uint32_t>(lists * n);
  if (lists == 1 && n <= kRanked)
    start(rank_keys, blocks_for(n, kThreads / kRankers), kThreads, 0, int(n), sorted, positions, keys);
  else
    radix::sort_rows<uint32_t>(keys, radix::AsTheyAre<uint32_t>{}, radix::ToArrays<uint32_t>{sorted, positions, n}, lists, n,
                               bits_of(keys.none));
  const int64_t chunk = kernels::everywhere() ? n : kChunk;
  const int64_t slots = (n + kChunk - 1) / kChunk, elements = places.width.length * pack;
  const int64_t bytes = places.rows * slots * 2 * elements * int64_t(sizeof(double));  // the largest Wide
  return {sorted, positions, n > chunk ? scratch.take_bytes(size_t(bytes)) : nullptr, slots, chunk};
}

// ---- updates that replace the target: the last update of a target wins

template <class U>
__global__ void __launch_bounds__(kThreads)
    set_linked(int64_t threads, const __grid_constant__ Places places, const __grid_constant__ Indices indices) {
  __shared__ Links links;
  links.fill(indices, int(places.n));
  const int64_t t = thread_number();
  if (t >= threads) return;
  const UpdateElement mine(places, t);
  if (links.key[mine.q] < 0 || links.next[mine.q] < int(places.n)) return;
  const int64_t target = places.base(mine.row, places.length) + links.key[mine.q] * places.step + mine.c;
  reinterpret_cast<U*>(places.y)[target] =
      reinterpret_cast<const U*>(places.u)[places.base(mine.row, places.n) + mine.q * places.step + mine.c];
}

__global__ void __launch_bounds__(kThreads)
    find_last(int64_t n, unsigned long long* last, const __grid_constant__ Indices indices) {
  const int64_t j = thread_number();
  if (j >= n) return;
  const int64_t key = indices.position(j);
  if (key >= 0) atomicMax(last + key, (unsigned long long)(j + 1));
}

template <class U>
__global__ void __launch_bounds__(kThreads)
    set_last(int64_t threads, const unsigned long long* last, const __grid_constant__ Places places,
             const __grid_constant__ Indices indices) {
  const int64_t t = thread_number();
  if (t >= threads) return;
  const UpdateElement mine(places, t);
  const int64_t key = indices.position(mine.q);
  if (key < 0 || int64_t(last[key]) != mine.q + 1) return;
  const int64_t target = places.base(mine.row, places.length) + key * places.step + mine.c;
  reinterpret_cast<U*>(places.y)[target] =
      reinterpret_cast<const U*>(places.u)[places.base(mine.row, places.n) + mine.q * places.step + mine.c];
}

void set(const ScatterJob& job, int64_t unit) {
  const Places& places = job.places;
  if (places.n <= kNear)
    return visit_unit(unit, [&](auto u) {
      start(set_linked<decltype(u)>, blocks_for(job.threads), kThreads, 0, job.threads, places, *job.indices);
    });
  Scratch scratch;
  auto* last = scratch.take<unsigned long long>(places.length);
  assign_number(flat_view(last, DType::u64, places.length), 0);
  start(find_last, blocks_for(places.n), kThreads, 0, places.n, last, *job.indices);
  visit_unit(unit, [&](auto u) {
    start(set_last<decltype(u)>, blocks_for(job.threads), kThreads, 0, job.threads, last, places, *job.indices);
  });
}

// ---- a launch

const ScatterKernel& op_of(const Launch& launch) {
  return static_cast<const ScatterKernel&>(*static_cast<const Scatter*>(launch.table));
}

// `width` neighbouring elements or packs belong to each index. With own_lists, each of the `columns` columns has its own list.
Places places_for(const View& out, const View& updates, int64_t rows, int64_t n, int64_t length, int64_t step, int64_t width,
                  int64_t columns, bool own_lists) {
  const int64_t all = rows * n * width;
  return {out.data,          updates.data,  out.dtype,           n,        length, step, rows,
          Ratio(width, all), Ratio(n, all), Ratio(columns, all), own_lists};
}

// Fills the target with its contents before the updates: an array, or the op's identity if `before` is null.
void begin_target(const View& out, const View* before, const ScatterKernel& op) {
  if (before) assign(out, *before);
  else assign_number(out, identity_of(op.identity, out.dtype, out.dtype));
}

// Scatters updates at indices that are shared by all positions along the axes before.
void scatter(const Launch& launch, const View* before, const View& indices_view, const View& given) {
  const ScatterKernel& op = op_of(launch);
  const View& out = launch.out();
  const int axis = int(launch.ints[0]);
  const AxisSplit a = kernels::split_at(out, axis);
  const int64_t n = indices_view.size();
  const Indices indices(launch, indices_view, a.length, op.negative);
  if (out.size() == 0 || given.size() == 0) {
    begin_target(out, before, op);
    return check_indices(indices_view, indices);
  }
  Scratch scratch;
  const View updates = contiguous_as(out.dtype, given, scratch);
  const int size = item_size(out.dtype);
  if (op.moves) {
    begin_target(out, before, op);
    const int64_t unit = unit_of(address(out) | address(updates) | uint64_t(a.inner * size)), width = a.inner * size / unit;
    return set(
        {places_for(out, updates, a.outer, n, a.length, width, width, 1, false), &indices, nullptr, 1, a.outer * n * width},
        unit);
  }
  const Compute compute = compute_type(out.dtype);
  const uint64_t pack_bytes = uint64_t(4 * size);
  const bool packs = compute == Compute::f32 && a.inner % 4 == 0 && (address(out) | address(updates)) % pack_bytes == 0;
  const int pack = packs ? 4 : 1;
  const int64_t width = a.inner / pack;
  ScatterJob job{places_for(out, updates, a.outer, n, a.length, a.inner, width, 1, false), &indices, nullptr, pack,
                 a.outer * n * width};
  job.whole = n <= kNear && a.outer * a.length * width <= kWhole;
  if (job.whole) {
    const bool readable = before && before->contiguous() && (!packs || address(*before) % pack_bytes == 0);
    if (before && !readable) begin_target(out, before, op);
    job.before = readable ? before->data : before ? out.data : nullptr;
    job.number = identity_of(op.identity, out.dtype, storage_of(compute));
    job.threads = a.outer * a.length * width;
    return op.combine[int(compute)](job);
  }
  begin_target(out, before, op);
  Sorted sorted;
  if (n > kNear) {
    sorted = sort_updates({indices, Ratio(), Ratio(), false, false, uint32_t(a.length)}, job.places, pack, scratch);
    job.sorted = &sorted;
  }
  op.combine[int(compute)](job);
}

// Adds an entry to the table. The entry lives as long as the program.
struct AddScattered {
  std::vector<const Scatter*>& table;

  template <class R> void operator()(R entry, const char* name) const {
    using Op = typename R::Functor;
    static const ScatterKernel op = [&] {
      ScatterKernel kernel{kernels::scatter_of(entry, name), {}, R::kMoves};
      if constexpr (!R::kMoves)
        kernel = {kernels::scatter_of(entry, name),
                  {combine_as<Op, float>, combine_as<Op, double>, combine_as<Op, int64_t>, combine_as<Op, uint64_t>,
                   combine_as<Op, bool>},
                  false};
      return kernel;
    }();
    table.push_back(&op);
  }
};

}  // namespace
}  // namespace pb::cuda::scattering

namespace pb::kernels {

using namespace cuda;
using namespace cuda::scattering;

const std::vector<const Scatter*>& scatters() {
  static const std::vector<const Scatter*> table = [] {
    std::vector<const Scatter*> entries;
    each_scatter(AddScattered{entries});
    return entries;
  }();
  return table;
}

void index_write(const Launch& launch) { scattering::scatter(launch, &launch.in(0), launch.in(1), launch.in(2)); }

void scatter_write(const Launch& launch) { scattering::scatter(launch, nullptr, launch.in(0), launch.in(1)); }

void along_axis_add(const Launch& launch) {
  const View& out = launch.out();
  const ScatterKernel& op = op_of(launch);
  const int axis = int(launch.ints[0]);
  const AxisSplit a = split_at(out, axis);
  const int64_t n = launch.in(0).shape[axis], all = launch.in(0).size();
  const Indices indices(launch, launch.in(0), a.length, op.negative);
  assign_number(out, 0);
  if (out.size() == 0 || all == 0) return check_indices(launch.in(0), indices);
  Scratch scratch;
  const View updates = contiguous_as(out.dtype, launch.in(1), scratch);
  ScatterJob job{places_for(out, updates, a.outer * a.inner, n, a.length, a.inner, 1, a.inner, true), &indices, nullptr, 1,
                 all};
  Sorted sorted;
  if (n > kNearAlong) {
    const int64_t targets = a.outer * a.length * a.inner;
    if (n < kLongList && targets <= kMaxKey && all <= kMaxList) {  // targets are single elements, all in one list
      const Keys keys{indices, Ratio(a.inner, all), Ratio(n, all), true, false, uint32_t(targets)};
      job.places = places_for(out, updates, 1, all, targets, 1, 1, 1, false);
      sorted = sort_updates(keys, job.places, 1, scratch);
    } else {
      sorted =
          sort_updates({indices, Ratio(a.inner, all), Ratio(n, all), false, true, uint32_t(a.length)}, job.places, 1, scratch);
    }
    job.sorted = &sorted;
  }
  op.combine[int(compute_type(out.dtype))](job);
}

}  // namespace pb::kernels
