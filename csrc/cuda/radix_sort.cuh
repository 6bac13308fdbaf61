// A stable radix sort of long rows, from the least significant byte of the keys on. Each pass over a byte moves the elements once;
// bytes that are equal in all keys of a row are skipped.
#pragma once
#include <algorithm>

#include "cuda/launch.cuh"

namespace pb::cuda::radix {

constexpr int kDigits = 256;  // thread d of a block handles digit d
constexpr int kWarps = int(kThreads / kWarp);
static_assert(kDigits == int(kThreads));
template <class U> constexpr int kItems = sizeof(U) == 8 ? 8 : 16;  // elements per thread
template <class U> constexpr int kTile = kItems<U> * int(kThreads);
constexpr int64_t kCountBlocks = 2048;  // the most blocks that count a row

// The arguments of a sort's kernels: sizes, and memory, in which everything but the items and positions begins as zero.
template <class U> struct SortJob {
  int64_t rows, n;  // n: elements per row, less than 2^32
  uint32_t tiles;   // tiles per row
  int passes;
  U* items[2];  // two buffers for the rows; each pass moves from one to the other
  // The items' original positions in their rows; not stored before the first move, when they equal the current positions.
  uint32_t* positions[2];
  // [row][tile][digit]: a word with a count, the pass, and a bit that is set if the count includes all earlier tiles.
  uint64_t* progress;
  uint32_t* counts;  // [row][pass][digit]: the number of elements
  // [pass]: the number of tiles begun; a block takes the next tile, so that it never waits for a tile that has not begun.
  uint32_t* tickets;
};

template <class U> __device__ inline unsigned digit_of(U key, int pass) { return unsigned(key >> (8 * pass)) & 0xffu; }

template <class W> __global__ void __launch_bounds__(kThreads) clear(int64_t n, W* data) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) data[i] = 0;
}

// ---- counting the digits of all passes, before the first pass

// Copies the rows that `load` reads, and counts their digits. A thread adds consecutive equal digits at once: in small integers
// most bytes are equal.
template <class U, class Load, class Key>
__global__ void __launch_bounds__(kThreads)
    count(const __grid_constant__ Load load, Key key, const __grid_constant__ SortJob<U> job, uint32_t blocks, uint32_t span) {
  __shared__ uint32_t counts[sizeof(U)][kDigits];
  const int64_t row = blockIdx.x / blocks;
  const auto source = load.row(row);
  for (int p = 0; p < job.passes; ++p) counts[p][threadIdx.x] = 0;
  __syncthreads();
  for (uint32_t t = 0; t < span; ++t) {
    const int64_t first = (int64_t(blockIdx.x % blocks) * span + t) * kTile<U> + threadIdx.x;
    U* const copies = job.items[0] + row * job.n;
#pragma unroll 4
    for (int k = 0; k < kItems<U>; ++k) {  // not unrolled further, because reading an item may take a hundred instructions
      const int64_t i = first + k * int64_t(kThreads);
      if (i < job.n) copies[i] = load.item(source, i);
    }
    U keys[kItems<U>];
#pragma unroll
    for (int k = 0; k < kItems<U>; ++k) {
      const int64_t i = first + k * int64_t(kThreads);
      if (i < job.n) keys[k] = key(copies[i]);
    }
    for (int p = 0; p < job.passes; ++p) {
      uint32_t run = 0;
      unsigned before = 0;
#pragma unroll
      for (int k = 0; k < kItems<U>; ++k) {
        if (first + k * int64_t(kThreads) >= job.n) continue;
        const unsigned digit = digit_of(keys[k], p);
        if (digit != before && run > 0) {
          atomicAdd(&counts[p][before], run);
          run = 0;
        }
        before = digit, ++run;
      }
      if (run > 0) atomicAdd(&counts[p][before], run);
    }
  }
  __syncthreads();
  for (int p = 0; p < job.passes; ++p)
    if (const uint32_t some = counts[p][threadIdx.x])
      atomicAdd(&job.counts[(row * job.passes + p) * kDigits + threadIdx.x], some);
}

// ---- a pass

// Returns the lanes of the warp that have the same digit as this one.
__device__ inline unsigned same_digit(unsigned digit) {
  unsigned same = kFull;
#pragma unroll
  for (int bit = 0; bit < 8; ++bit) {
    const bool set = digit >> bit & 1;
    const unsigned lanes = __ballot_sync(kFull, set);
    same &= set ? lanes : ~lanes;
  }
  return same;
}

// Returns the sum of x over the threads before this one.
__device__ inline uint64_t sum_before(uint64_t x) {
  __shared__ uint64_t sums[kWarps];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint64_t sum = x;
#pragma unroll
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const uint64_t other = __shfl_up_sync(kFull, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == kWarp - 1) sums[warp] = sum;
  __syncthreads();
  for (unsigned w = 0; w < warp; ++w) sum += sums[w];
  return sum - x;
}

// Returns the number of elements with this thread's digit in the row's earlier tiles; `own` is the number in this tile. The count
// and its state share one 64-bit word of `progress`, which is written at once, so no other memory ordering is needed (Merrill &
// Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016; Adinets & Merrill, "Onesweep", 2022).
__device__ inline uint32_t count_before(uint64_t* progress, uint32_t tile, int pass, uint32_t own) {
  const uint64_t partial = uint64_t(pass + 1) * 2, complete = partial + 1;  // a word left by another pass matches neither value
  volatile uint64_t* words = progress + threadIdx.x;
  words[int64_t(tile) * kDigits] = uint64_t(own) << 8 | (tile == 0 ? complete : partial);
  if (tile == 0) return 0;
  uint64_t before = 0;
  for (int64_t t = int64_t(tile) - 1;; --t) {
    uint64_t word;
    while (((word = words[t * kDigits]) & 0xfe) != partial) __nanosleep(20);
    before += word >> 8;
    if (word & 1) break;
  }
  words[int64_t(tile) * kDigits] = (before + own) << 8 | complete;
  return uint32_t(before);
}

// Moves one tile by one byte of the keys. The last pass passes the elements to `store`.
template <class U, class Key, class Store>
__global__ void __launch_bounds__(kThreads, 3)
    move(Key key, const __grid_constant__ Store store, const __grid_constant__ SortJob<U> job, int pass) {
  constexpr bool kPositions = Store::kPositions;
  __shared__ uint32_t ranks[kWarps][kDigits];
  // For each digit, the target of its first element in the tile, less that element's position in the tile.
  __shared__ uint32_t target[kDigits];
  __shared__ U items[kTile<U>];
  __shared__ uint32_t places[kPositions ? kTile<U> : 1];
  __shared__ uint32_t ticket;
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) ticket = atomicAdd(&job.tickets[pass], 1u);
  __syncthreads();
  const int64_t row = ticket / job.tiles, n = job.n;
  const uint32_t tile = ticket % job.tiles;
  const int64_t begin = int64_t(tile) * kTile<U>;
  const bool last = pass + 1 == job.passes;

  // A pass in which all keys of the row have the same byte moves nothing. The number of earlier passes that moved the row
  // determines the buffer that holds it.
  const uint32_t* counts = job.counts + row * job.passes * kDigits + threadIdx.x;
  int moved = 0;
  if constexpr (sizeof(U) > 1)
    for (int p = 0; p < pass; ++p) moved += !__syncthreads_or(counts[p * kDigits] == n);
  const uint32_t everywhere = counts[pass * kDigits];
  const bool stays = __syncthreads_or(everywhere == n);
  if (stays && !last) return;
  const U* from = job.items[moved % 2] + row * n;
  const uint32_t* from_positions = job.positions[moved % 2] + row * n;
  const auto position = [&](int64_t i) { return moved > 0 ? from_positions[i] : uint32_t(i); };
  const auto sink = store.row(row);
  if (stays) {
    for (int64_t i = begin + threadIdx.x; i < n && i < begin + kTile<U>; i += kThreads)
      store.put(sink, i, from[i], kPositions ? position(i) : 0);
    return;
  }

  // Ranks each element among the elements of its warp with the same digit. The elements of a warp are contiguous.
  const int64_t first = begin + int64_t(warp) * kWarp * kItems<U> + lane;
  U x[kItems<U>];
  uint32_t rank[kItems<U> / 2];  // two 16-bit ranks per word
#pragma unroll
  for (int k = 0; k < kItems<U>; ++k) x[k] = first + k * int64_t(kWarp) < n ? from[first + k * int64_t(kWarp)] : U(0);
  // Positions past the end of the row get the largest digit, so they come after all elements. They are not stored.
  const auto digit = [&](int k) { return first + k * int64_t(kWarp) < n ? digit_of(key(x[k]), pass) : unsigned(kDigits - 1); };
  for (unsigned d = lane; d < kDigits; d += kWarp) ranks[warp][d] = 0;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kItems<U>; ++k) {
    const unsigned d = digit(k), same = same_digit(d), below = same & ((1u << lane) - 1);
    const uint32_t before = ranks[warp][d];
    __syncwarp();
    if (below == 0) ranks[warp][d] = before + __popc(same);
    __syncwarp();
    const uint32_t own = before + __popc(below);
    rank[k / 2] = k % 2 ? rank[k / 2] | own << 16 : own;
  }
  __syncthreads();

  // Thread d computes where digit d begins, in the tile and in the row.
  {
    uint32_t own = 0, of_warp[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) of_warp[w] = ranks[w][threadIdx.x], own += of_warp[w];
    const uint32_t before = count_before(job.progress + row * job.tiles * kDigits, tile, pass, own);
    const uint64_t starts = sum_before(uint64_t(everywhere) << 32 | own);
    uint32_t start = uint32_t(starts);
    target[threadIdx.x] = uint32_t(starts >> 32) + before - start;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) ranks[w][threadIdx.x] = start, start += of_warp[w];
  }
  __syncthreads();

  // The elements pass through shared memory, so that the elements of a digit are written together.
#pragma unroll
  for (int k = 0; k < kItems<U>; ++k) {
    const uint32_t place = ranks[warp][digit(k)] + (rank[k / 2] >> (k % 2 * 16) & 0xffff);
    items[place] = x[k];
    if constexpr (kPositions)
      if (first + k * int64_t(kWarp) < n) places[place] = position(first + k * int64_t(kWarp));
  }
  __syncthreads();
  U* to = job.items[(moved + 1) % 2] + row * n;
  uint32_t* to_positions = job.positions[(moved + 1) % 2] + row * n;
#pragma unroll 4
  for (int k = 0; k < kItems<U>; ++k) {
    const int i = k * int(kThreads) + int(threadIdx.x);
    if (begin + i >= n) break;
    const U item = items[i];
    const uint32_t place = target[digit_of(key(item), pass)] + uint32_t(i);
    if (last) {
      store.put(sink, int64_t(place), item, kPositions ? places[i] : 0);
    } else {
      to[place] = item;
      if constexpr (kPositions) to_positions[place] = places[i];
    }
  }
}

// ---- a sort

// Sorts each of `rows` rows of n items by the lowest `bits` bits of key(item). Items with equal keys stay in order.
//   Load    auto row(int64_t r); U item(source, int64_t i) returns item i of the row
//   Key     U operator()(U item)
//   Store   kPositions; auto row(int64_t r); void put(sink, int64_t i, U item, uint32_t position) receives item i of the
//           result, and its original position if kPositions is true
// All three are device functors, and are passed to the kernels by value.
template <class U, class Load, class Key, class Store>
void sort_rows(const Load& load, const Key& key, const Store& store, int64_t rows, int64_t n, int bits) {
  if (rows == 0 || n == 0) return;
  Scratch scratch;
  SortJob<U> job{};
  job.rows = rows, job.n = n, job.passes = std::max(1, (bits + 7) / 8);
  job.tiles = uint32_t((n + kTile<U> - 1) / kTile<U>);
  const int64_t tiles = rows * job.tiles, counts = rows * job.passes * kDigits;
  const int64_t words = tiles * kDigits + counts / 2 + sizeof(U);
  job.progress = scratch.take<uint64_t>(words);
  job.counts = reinterpret_cast<uint32_t*>(job.progress + tiles * kDigits);
  job.tickets = job.counts + counts;
  for (int k = 0; k < std::min(2, job.passes); ++k) {
    job.items[k] = scratch.take<U>(rows * n);
    if (Store::kPositions && job.passes > 1) job.positions[k] = scratch.take<uint32_t>(rows * n);
  }
  start(clear<uint64_t>, blocks_for(words), kThreads, 0, words, job.progress);
  const uint32_t span = uint32_t((job.tiles + kCountBlocks - 1) / kCountBlocks), blocks = (job.tiles + span - 1) / span;
  start(count<U, Load, Key>, blocks_for(rows * blocks, 1), kThreads, 0, load, key, job, blocks, span);
  for (int pass = 0; pass < job.passes; ++pass)
    start(move<U, Key, Store>, blocks_for(tiles, 1), kThreads, 0, key, store, job, pass);
}

// ---- keys in an array

template <class U> struct FromArray {
  const U* keys;
  int64_t n;
  __device__ const U* row(int64_t r) const { return keys + r * n; }
  __device__ U item(const U* source, int64_t i) const { return source[i]; }
};
template <class U> struct AsTheyAre {
  __device__ U operator()(U item) const { return item; }
};
template <class U> struct ToArrays {
  static constexpr bool kPositions = true;
  U* keys;
  uint32_t* positions;
  int64_t n;
  __device__ int64_t row(int64_t r) const { return r * n; }
  __device__ void put(int64_t first, int64_t i, U item, uint32_t position) const {
    keys[first + i] = item, positions[first + i] = position;
  }
};

// Sorts n keys into `sorted`, and their original positions into `positions`. Only the lowest `bits` bits of the keys may be
// nonzero.
template <class U> void sort_keys(const U* keys, int64_t n, int bits, U* sorted, uint32_t* positions) {
  sort_rows<U>(FromArray<U>{keys, n}, AsTheyAre<U>{}, ToArrays<U>{sorted, positions, n}, 1, n, bits);
}

}  // namespace pb::cuda::radix
