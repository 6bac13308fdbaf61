// Sorts short rows in shared memory: each thread sorts eight elements, then pairs of sorted runs are merged until one is left.
#pragma once
#include <algorithm>

#include "cuda/axis_rows.cuh"
#include "families/sort.h"

namespace pb::cuda::merge {

using kernels::Keyed;
using kernels::Order;

constexpr int kEach = 8;  // elements per thread
// The longest row. The elements of a block then fit the shared memory that a block gets without opting in.
template <class U> constexpr int64_t kLongest = sizeof(U) == 8 ? 2048 : 4096;

// A key and its position in one 32-bit word. The position makes all items different.
struct Small {
  uint32_t bits;
  Small() = default;
  __device__ Small(uint32_t key, uint32_t position) : bits(key << 16 | position) {}
  __device__ int64_t position() const { return bits & 0xFFFF; }
  __device__ bool operator<(Small other) const { return bits < other.bits; }
};
template <class U> using Item = std::conditional_t<(sizeof(U) < 4), Small, Keyed<U>>;

// Spreads elements out so that the eight of one thread begin nine slots after those of the previous thread, and so in other banks.
__host__ __device__ inline int slot(int i) { return i + i / kEach; }

// Sorts eight elements with Batcher's odd-even merge sort.
template <class I> __device__ inline void sort_eight(I (&x)[kEach]) {
  const auto exchange = [&x](int a, int b) {
    const I low = x[b] < x[a] ? x[b] : x[a], high = x[b] < x[a] ? x[a] : x[b];
    x[a] = low, x[b] = high;
  };
#pragma unroll
  for (int p = 1; p < kEach; p *= 2) {
#pragma unroll
    for (int q = p; q >= 1; q /= 2) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int j = i - q % p;  // position within a pair (i, i + q)
        if (i >= q % p && j / q % 2 == 0 && i + q < kEach && i / (2 * p) == (i + q) / (2 * p)) exchange(i, i + q);
      }
    }
  }
}

// Returns how many of the first `count` elements of two merged runs come from run a.
template <class I> __device__ inline int share_of(const I* row, int a, int lengths_a, int b, int length_b, int count) {
  int low = max(0, count - length_b), high = min(count, lengths_a);
  while (low < high) {
    const int middle = (low + high) / 2;
    if (row[slot(a + middle)] < row[slot(b + count - 1 - middle)]) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Sorts n items in shared memory, where item i is at row[slot(i)]. All threads of the block must call it, with a barrier before and
// after. Each busy thread sorts the eight items from `begin` on. `beyond` must come after every item.
template <class I> __device__ inline void sort_shared(I* row, int n, int begin, bool busy, const I beyond) {
  I x[kEach];
  if (busy) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) x[k] = begin + k < n ? row[slot(begin + k)] : beyond;
    sort_eight(x);
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (begin + k < n) row[slot(begin + k)] = x[k];
  }
  for (int width = kEach; width < n; width *= 2) {
    __syncthreads();
    if (busy) {
      const int a = begin & ~(2 * width - 1), b = min(a + width, n);  // two runs of up to `width` items, cut off at n
      const int end_a = b, end_b = min(a + 2 * width, n), count = begin - a;
      const int of_a = share_of(row, a, end_a - a, b, end_b - b, count);
      int at_a = a + of_a, at_b = b + count - of_a;
      I next_a = at_a < end_a ? row[slot(at_a)] : beyond, next_b = at_b < end_b ? row[slot(at_b)] : beyond;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const bool from_b = next_b < next_a;
        x[k] = from_b ? next_b : next_a;
        if (from_b) next_b = ++at_b < end_b ? row[slot(at_b)] : beyond;
        else next_a = ++at_a < end_a ? row[slot(at_a)] : beyond;
      }
    }
    __syncthreads();
    if (busy) {
#pragma unroll
      for (int k = 0; k < kEach; ++k)
        if (begin + k < n) row[slot(begin + k)] = x[k];
    }
  }
}

// The task of a launch: sorts each row of n elements and stores the first k of them, as positions (int64) or as elements.
struct Task {
  AxisRows in, out;
  int64_t rows, n, k;
  bool in_across, out_across;  // true if neighbouring rows are closer in memory than neighbouring elements of a row
  bool positions;
  int threads = 0, together = 0;  // threads per row, and rows per block; start_rows sets them
};

template <class U> __global__ void __launch_bounds__(512) sort_rows(Order<U> order, const __grid_constant__ Task task) {
  using I = Item<U>;
  const int n = int(task.n), k = int(task.k), room = slot(n - 1) + 1, threads = int(blockDim.x);
  const int64_t first_row = int64_t(blockIdx.x) * task.together;
  const int here = int(min(int64_t(task.together), task.rows - first_row));
  I* const items = reinterpret_cast<I*>(pb_shared);

  for (int e = int(threadIdx.x); e < here * n; e += threads) {
    const int r = task.in_across ? e % here : e / n, i = task.in_across ? e / here : e % n;
    const U bits = *reinterpret_cast<const U*>(task.in.row(first_row + r) + i * task.in.stride);
    items[r * room + slot(i)] = I(order.key(bits), unsigned(i));
  }
  __syncthreads();

  const int r = int(threadIdx.x) / task.threads, begin = int(threadIdx.x) % task.threads * kEach;
  sort_shared(items + r * room, n, begin, r < here, I(U(~U(0)), 0xFFFF));
  __syncthreads();

  for (int e = int(threadIdx.x); e < here * k; e += threads) {
    const int r = task.out_across ? e % here : e / k, i = task.out_across ? e / here : e % k;
    const int64_t position = items[r * room + slot(i)].position();
    char* to = task.out.row(first_row + r) + i * task.out.stride;
    if (task.positions) *reinterpret_cast<int64_t*>(to) = position;
    else *reinterpret_cast<U*>(to) = *reinterpret_cast<const U*>(task.in.row(first_row + r) + position * task.in.stride);
  }
}

// Starts the sort. n must be from 1 to kLongest<U>, and k at most n.
template <class U> void start_rows(const Order<U>& order, Task task) {
  task.threads = int(task.n + kEach - 1) / kEach;
  task.together = int(std::min<int64_t>(task.rows, std::max(1, 128 / task.threads)));
  const int room = slot(int(task.n) - 1) + 1,
            threads = (task.threads * task.together + int(kWarp) - 1) / int(kWarp) * int(kWarp);
  start(sort_rows<U>, blocks_for(task.rows, task.together), dim3(unsigned(threads)),
        size_t(task.together) * room * sizeof(Item<U>), order, task);
}

}  // namespace pb::cuda::merge
