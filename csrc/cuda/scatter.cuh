// Scatters. The updates of a target are combined in the order of the indices, without atomic operations. If there are few updates,
// those of a target are linked to one another in shared memory. Otherwise updates are sorted by target first, and long runs are cut
// into chunks, whose results are combined in order. Under "everywhere" one thread combines a whole run, as on a CPU.
#pragma once
#include "cuda/index.cuh"
#include "families/scatter.h"

namespace pb::cuda::scattering {

// With at most this many indices, one block links them in shared memory, one index per thread.
constexpr int64_t kNear = kThreads;
constexpr int64_t kNearAlong = 32;                // with at most this many indices per column, each update searches all of them
static_assert(kNearAlong <= kernels::kSumBlock);  // so these targets have one block
// With at most this many threads, each target element looks for its updates; beyond, each update looks for its target.
constexpr int64_t kWhole = 1 << 20;
constexpr int64_t kChunk = 256;                                  // updates that one thread combines, one after the other
template <int kPack> constexpr int kBatch = kPack == 1 ? 8 : 4;  // updates that are loaded at once; divides kSumBlock
constexpr int kResident = 4;                                     // blocks per multiprocessor

// Lists of indices, updates and targets. Row r has n indices, which refer to targets 0 to length - 1 of row r. A target has `width`
// neighbouring elements, or packs of elements. A row is a position along the axes before the scattered one. If every column has its
// own list, a row is such a position together with one of the `columns` positions along the axes after.
struct Places {
  char* y;
  const char* u;
  DType dtype;
  int64_t n, length, step;  // step: elements from target to target, and from update to update
  int64_t rows;
  Ratio width, count, columns;  // count: divides by n
  bool own_lists;               // true if each row has its own list; otherwise all rows share one

  __device__ int64_t base(int64_t row, int64_t height) const {
    const int64_t outer = columns.divide(row);
    return outer * height * step + (row - outer * columns.length);
  }
};

// What thread t combines: element (or pack) c of the update at position q of a row's list.
struct UpdateElement {
  int64_t row, q, c;
  __device__ UpdateElement(const Places& places, int64_t t) {
    const int64_t s = places.width.divide(t);
    c = t - s * places.width.length;
    row = places.count.divide(s);
    q = s - row * places.n;
  }
};

// kPack neighbouring elements in the compute type.
template <class C, int kPack> struct Numbers {
  C v[kPack];

  __device__ static Numbers load(DType dtype, const char* data, int64_t i) {
    Numbers x;
    if constexpr (kPack == 4) load_four(dtype, data, i, x.v);
    else x.v[0] = load_as<C>(dtype, data + i * size_of<C>(dtype));
    return x;
  }
  __device__ void store(DType dtype, char* data, int64_t i) const {
    if constexpr (kPack == 4) store_four(dtype, data, i, v);
    else store_as<C>(dtype, data + i * size_of<C>(dtype), v[0]);
  }
  template <class Op> __device__ void combine(const Numbers& u) {
#pragma unroll
    for (int k = 0; k < kPack; ++k) v[k] = Op()(v[k], u.v[k]);
  }
};

// The type of the sums of blocks of updates, and of the results of chunks.
template <class Op, class C> using Wide = std::conditional_t<kernels::kHasLongSums<Op, C>, double, C>;

// Combines a target y with a thread's updates. load(u) loads the next of them into the batch u and returns their number, which is
// less than the size of the batch only at the end. The return value is y before it is rounded.
template <class Op, class C, int kPack, class Load>
__device__ inline Numbers<Wide<Op, C>, kPack> combine_all(Numbers<C, kPack>& y, const Load& load) {
  static_assert(kernels::kSumBlock % kBatch<kPack> == 0);
  Numbers<Wide<Op, C>, kPack> sum{};
  bool is_long = false;
  int count = kBatch<kPack>;
  for (int of_block = 0; count == kBatch<kPack>; of_block += kBatch<kPack>) {
    Numbers<C, kPack> u[kBatch<kPack>] = {};
    count = load(u);
    if constexpr (kernels::kHasLongSums<Op, C>)
      if (of_block == kernels::kSumBlock && count > 0) {
#pragma unroll
        for (int k = 0; k < kPack; ++k) sum.v[k] += double(y.v[k]), y.v[k] = 0;
        is_long = true, of_block = 0;
      }
#pragma unroll
    for (int k = 0; k < kBatch<kPack>; ++k)
      if (k < count) y.template combine<Op>(u[k]);
  }
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    const auto last = Wide<Op, C>(y.v[k]);
    sum.v[k] = is_long ? kernels::Add()(sum.v[k], last) : last;
    if (is_long) y.v[k] = C(sum.v[k]);
  }
  return sum;
}

// ---- few indices

// The links between indices: next[j] is the next index with the same target, or n. first[j] is true for the first index of a
// target.
struct Links {
  int64_t key[kNear];
  int next[kNear];
  bool first[kNear];

  // All threads of the block must call it, with n <= kNear.
  __device__ void fill(const Indices& indices, int n) {
    const int j = int(threadIdx.x);
    if (j < n) key[j] = indices.position(j);
    __syncthreads();
    if (j < n) {
      bool alone = key[j] >= 0;
      int after = n;
      for (int k = 0; k < n; ++k) {
        if (key[k] != key[j]) continue;
        if (k < j) alone = false;
        if (k > j && after == n) after = k;
      }
      first[j] = alone, next[j] = after;
    }
    __syncthreads();
  }
};

template <class Op, class C, int kPack>
__global__ void __launch_bounds__(kThreads, kResident)
    combine_linked(int64_t threads, const __grid_constant__ Places places, const __grid_constant__ Indices indices) {
  __shared__ Links links;
  const int n = int(places.n);
  links.fill(indices, n);
  const int64_t t = thread_number();
  if (t >= threads) return;
  const UpdateElement mine(places, t);
  if (!links.first[mine.q]) return;
  using X = Numbers<C, kPack>;
  const int64_t target = places.base(mine.row, places.length) + links.key[mine.q] * places.step + mine.c * kPack;
  const int64_t from = places.base(mine.row, places.n) + mine.c * kPack;
  X y = X::load(places.dtype, places.y, target);
  int j = int(mine.q);
  combine_all<Op>(y, [&](X(&u)[kBatch<kPack>]) {
    int count = 0;
#pragma unroll
    for (int k = 0; k < kBatch<kPack>; ++k)
      if (j < n) u[k] = X::load(places.dtype, places.u, from + j * places.step), j = links.next[j], count = k + 1;
    return count;
  });
  y.store(places.dtype, places.y, target);
}

// The contents of the target before the updates: an array like the target, or a number.
template <class C> struct Before {
  const char* data;
  C number;
};

// Computes every element of the target with its updates: each thread looks for the updates of its row among the indices.
template <class Op, class C, int kPack>
__global__ void __launch_bounds__(kThreads, kResident)
    combine_whole(int64_t threads, const __grid_constant__ Places places, Ratio length, Before<C> before,
                  const __grid_constant__ Indices indices) {
  __shared__ int64_t key[kNear];
  __shared__ int first[kThreads];  // for each target row of the block, the first index that refers to it, or n
  const int n = int(places.n), thread = int(threadIdx.x);
  if (thread < n) key[thread] = indices.position(thread);
  __syncthreads();
  const int64_t t = thread_number(), begin = places.width.divide(t - thread);
  const int64_t end = places.width.divide(min(t - thread + kThreads, threads) - 1) + 1;
  if (begin + thread < end) {
    const int64_t row = begin + thread, wanted = row - length.divide(row) * length.length;
    int j = 0;
    while (j < n && key[j] != wanted) ++j;
    first[thread] = j;
  }
  __syncthreads();
  if (t >= threads) return;
  using X = Numbers<C, kPack>;
  const int64_t row = places.width.divide(t), outer = length.divide(row), wanted = row - outer * length.length;
  const int64_t c = (t - row * places.width.length) * kPack, target = row * places.step + c;
  const int64_t from = outer * n * places.step + c;
  X y;
  if (before.data) y = X::load(places.dtype, before.data, target);
  else
    for (int k = 0; k < kPack; ++k) y.v[k] = before.number;
  int j = first[row - begin];
  combine_all<Op>(y, [&](X(&u)[kBatch<kPack>]) {
    int count = 0;
#pragma unroll
    for (int k = 0; k < kBatch<kPack>; ++k) {
      if (j < n) u[k] = X::load(places.dtype, places.u, from + j * places.step), count = k + 1, ++j;
      while (j < n && key[j] != wanted) ++j;
    }
    return count;
  });
  y.store(places.dtype, places.y, target);
}

// Combines the updates if every column has its own short list of indices. Each update searches the list of its column; the first
// update of a target combines all of them.
template <class Op, class C>
__global__ void __launch_bounds__(kThreads, kResident)
    combine_columns(int64_t threads, const __grid_constant__ Places places, const __grid_constant__ Indices indices) {
  const int64_t t = thread_number();
  if (t >= threads) return;
  // Neighbouring threads take neighbouring columns: t = (outer * n + q) * columns + column.
  const int64_t s = places.columns.divide(t), column = t - s * places.columns.length, outer = places.count.divide(s);
  const int64_t q = s - outer * places.n, first = outer * places.n * places.step + column;
  const int64_t key = indices.position(t);
  if (key < 0) return;
  for (int64_t k = 0; k < q; ++k)
    if (indices.position(first + k * places.step) == key) return;
  using X = Numbers<C, 1>;
  const int64_t target = (outer * places.length + key) * places.step + column;
  X y = X::load(places.dtype, places.y, target);
  for (int64_t k = q; k < places.n; ++k)
    if (k == q || indices.position(first + k * places.step) == key)
      y.template combine<Op>(X::load(places.dtype, places.u, first + k * places.step));
  y.store(places.dtype, places.y, target);
}

// ---- sorted indices

// The targets of each list in increasing order, and the original positions of the indices. Invalid indices come last.
struct Sorted {
  const uint32_t *keys, *positions;
  void* partials;  // results of chunks, as Wide: [row][slot][true for a target's first chunk][element]
  int64_t slots;   // slots per row: one for every kChunk positions
  int64_t chunk;   // the most updates that one thread combines: kChunk, or all
};

// Returns the first position in [low, high) whose key is not below `key`.
__device__ inline int64_t lower_bound(const uint32_t* keys, int64_t low, int64_t high, uint64_t key) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (keys[middle] < key) low = middle + 1;
    else high = middle;
  }
  return low;
}

template <class W, int kPack> __device__ inline W* partial(const Sorted& sorted, const Places& places, int64_t row,
                                                           int64_t slot, bool first, int64_t c) {
  return static_cast<W*>(sorted.partials) + (((row * sorted.slots + slot) * 2 + first) * places.width.length + c) * kPack;
}

// A chunk is up to sorted.chunk consecutive updates of one target, counted from the target's first. The thread at the head of a chunk
// combines it. If the target has only that chunk, the result is final; otherwise it is a partial result for fold_chunks. A slot
// (kChunk positions) holds at most one partial result of a target's first chunk and one of a later chunk, because chunks of either
// kind start at least kChunk positions apart.
template <class Op, class C, int kPack>
__global__ void __launch_bounds__(kThreads, kResident)
    combine_chunks(int64_t threads, const __grid_constant__ Places places, const __grid_constant__ Sorted sorted) {
  const int64_t t = thread_number();
  if (t >= threads) return;
  const UpdateElement mine(places, t);
  const int64_t q = mine.q, n = places.n, chunk = sorted.chunk, list = places.own_lists ? mine.row * n : 0;
  const uint32_t *keys = sorted.keys + list, *positions = sorted.positions + list;
  const uint32_t key = keys[q];
  if (key >= places.length) return;
  const bool first = q == 0 || keys[q - 1] != key;
  if (!first && (q < chunk || keys[q - chunk] != key || (q - lower_bound(keys, 0, q, key)) % chunk != 0)) return;
  const bool more = q + chunk < n && keys[q + chunk] == key;
  const int64_t end = min(n, q + chunk);
  using X = Numbers<C, kPack>;
  const int64_t target = places.base(mine.row, places.length) + int64_t(key) * places.step + mine.c * kPack;
  const int64_t from = places.base(mine.row, n) + mine.c * kPack;
  X y = first ? X::load(places.dtype, places.y, target)
              : X::load(places.dtype, places.u, from + int64_t(positions[q]) * places.step);
  int64_t p = q + !first;
  const auto result = combine_all<Op>(y, [&](X(&u)[kBatch<kPack>]) {
    int count = 0;
#pragma unroll
    for (int k = 0; k < kBatch<kPack>; ++k) count += p + k < end && keys[p + k] == key;
#pragma unroll
    for (int k = 0; k < kBatch<kPack>; ++k)
      if (k < count) u[k] = X::load(places.dtype, places.u, from + int64_t(positions[p + k]) * places.step);
    p += kBatch<kPack>;
    return count;
  });
  if (first && !more) return y.store(places.dtype, places.y, target);
  auto* kept = partial<Wide<Op, C>, kPack>(sorted, places, mine.row, q / kChunk, first, mine.c);
#pragma unroll
  for (int k = 0; k < kPack; ++k) kept[k] = result.v[k];
}

// Combines the chunks of a target in order: each of `lanes` threads combines its share of them, and then one thread combines the
// shares. A block handles one slot, that is, the target, if any, whose second chunk begins in the slot.
template <class Op, class C, int kPack>
__global__ void __launch_bounds__(kThreads, kResident)
    fold_chunks(Ratio slots, Ratio tiles, int across, const __grid_constant__ Places places,
                const __grid_constant__ Sorted sorted) {
  using W = Wide<Op, C>;
  __shared__ W shares[kThreads];
  const int64_t rest = tiles.divide(blockIdx.x), tile = blockIdx.x - rest * tiles.length;
  const int64_t row = slots.divide(rest), slot = rest - row * slots.length + 1, n = places.n, middle = slot * kChunk;
  const uint32_t* keys = sorted.keys + (places.own_lists ? row * n : 0);
  const uint32_t key = keys[middle];
  if (key >= places.length || keys[middle - 1] != key) return;
  const int64_t begin = lower_bound(keys, middle - kChunk, middle, key);
  if (begin == middle - kChunk && begin > 0 && keys[begin - 1] == key) return;
  if (begin + kChunk >= n || keys[begin + kChunk] != key) return;
  const int64_t length = lower_bound(keys, begin, n, uint64_t(key) + 1) - begin;
  const int64_t chunks = (length + kChunk - 1) / kChunk - 1;  // the number of chunks after the first
  const int lanes = int(kThreads) / across, lane = int(threadIdx.x) / across;
  const int64_t c = tile * across + threadIdx.x % across, elements = places.width.length * kPack;
  const int64_t share = (chunks + lanes - 1) / lanes, from = lane * share, to = min(chunks, from + share);
  // Partial results are contiguous, so they are read as single elements even if the updates were read as packs.
  const W* after = partial<W, kPack>(sorted, places, row, slot, false, 0) + c;
  if (c < elements && from < to) {
    W y = after[from * 2 * elements];
#pragma unroll 8
    for (int64_t k = from + 1; k < to; ++k) y = Op()(y, after[k * 2 * elements]);
    shares[threadIdx.x] = y;
  }
  __syncthreads();
  if (c >= elements || lane > 0) return;
  W y = partial<W, kPack>(sorted, places, row, slot - 1, true, 0)[c];
  for (int l = 0; l < lanes && l * share < chunks; ++l) y = Op()(y, shares[l * across + threadIdx.x]);
  const int64_t target = places.base(row, places.length) + int64_t(key) * places.step + c;
  Numbers<C, 1>{{C(y)}}.store(places.dtype, places.y, target);
}

// ---- launches

// The arguments of a launch, without its functor and compute type.
struct ScatterJob {
  Places places;
  const Indices* indices;
  const Sorted* sorted;  // null if the indices are few
  int pack;              // elements per pack
  int64_t threads;
  // If `whole`, the kernel writes the whole target. It starts from `before`, or if that is null from a number, given by its bits in
  // the compute type.
  bool whole = false;
  const char* before = nullptr;
  uint64_t number = 0;
};

template <class Op, class C, int kPack> void combine(const ScatterJob& job) {
  const Places& places = job.places;
  const dim3 blocks = blocks_for(job.threads);
  if (!job.sorted) {
    if constexpr (kPack == 1 && std::is_same_v<Op, kernels::Add>)
      if (places.own_lists) return start(combine_columns<Op, C>, blocks, kThreads, 0, job.threads, places, *job.indices);
    if (job.whole) {
      Before<C> before{job.before, C()};
      std::memcpy(&before.number, &job.number, sizeof(C));
      return start(combine_whole<Op, C, kPack>, blocks, kThreads, 0, job.threads, places,
                   Ratio(places.length, places.rows * places.length), before, *job.indices);
    }
    return start(combine_linked<Op, C, kPack>, blocks, kThreads, 0, job.threads, places, *job.indices);
  }
  start(combine_chunks<Op, C, kPack>, blocks, kThreads, 0, job.threads, places, *job.sorted);
  const int64_t slots = (places.n - 1) / job.sorted->chunk, elements = places.width.length * kPack;
  int across = 1;
  while (across < int(kWarp) && across < elements) across *= 2;
  const int64_t tiles = (elements + across - 1) / across, all = places.rows * slots * tiles;
  start(fold_chunks<Op, C, kPack>, blocks_for(all, 1), kThreads, 0, Ratio(slots, all), Ratio(tiles, all), across, places,
        *job.sorted);
}

template <class Op, class C> void combine_as(const ScatterJob& job) {
  if constexpr (std::is_same_v<C, float>)
    if (job.pack == 4) return combine<Op, C, 4>(job);
  combine<Op, C, 1>(job);
}

// An op with a function for each compute type; null for ops that move bytes.
struct ScatterKernel : kernels::Scatter {
  void (*combine[kComputes])(const ScatterJob&);
  bool moves;
};

}  // namespace pb::cuda::scattering
