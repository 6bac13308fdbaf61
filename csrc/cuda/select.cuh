// Selects the first few elements of long rows, with one block per row. Counting the elements' bytes finds a bound that only a few
// elements do not exceed, and these are sorted.
#pragma once
#include "cuda/merge_sort.cuh"

namespace pb::cuda::select {

using kernels::Keyed;
using kernels::Order;
using merge::Task;

constexpr int kThreadsHere = 512, kAtOnce = 4;
static_assert(kThreadsHere * merge::kEach >= merge::kLongest<uint32_t>);
// Selection is faster than sorting for rows of up to kRowBlock elements times the number of rows. It uses one block per row; a sort
// uses all blocks for each row.
constexpr int64_t kRowBlock = int64_t{1} << 18;

// True if selection is faster than sorting: k is small, and the rows are many or not too long.
template <class U> bool pays(int64_t rows, int64_t n, int64_t k) {
  return k <= merge::kLongest<U> / 4 && n <= kRowBlock * rows && n < (int64_t{1} << 31);
}

// A bound on (key, position), of which the first `bytes` bytes are known. Elements that do not exceed the bound in these bytes are
// kept.
template <class U> struct Bound {
  static constexpr int kBytes = sizeof(U) + 4;
  U key = 0;
  uint32_t position = 0;
  int bytes = 0;

  // Returns -1, 0 or 1 if the element's leading bytes are less than, equal to, or greater than the known bytes.
  __device__ int compare(U k, uint32_t p) const {
    const int of_key = min(bytes, int(sizeof(U))), of_position = bytes - of_key;
    if (of_key == 0) return 0;
    const U a = U(k >> (8 * (int(sizeof(U)) - of_key))), b = U(key >> (8 * (int(sizeof(U)) - of_key)));
    if (a != b) return a < b ? -1 : 1;
    if (of_position == 0) return 0;
    const uint32_t c = p >> (8 * (4 - of_position)), d = position >> (8 * (4 - of_position));
    return c == d ? 0 : c < d ? -1 : 1;
  }
  __device__ unsigned next_byte(U k, uint32_t p) const {
    if (bytes < int(sizeof(U))) return unsigned(k >> (8 * (int(sizeof(U)) - 1 - bytes))) & 0xffu;
    return p >> (8 * (kBytes - 1 - bytes)) & 0xffu;
  }
  __device__ void append(unsigned byte) {
    if (bytes < int(sizeof(U))) key |= U(U(byte) << (8 * (int(sizeof(U)) - 1 - bytes)));
    else position |= byte << (8 * (kBytes - 1 - bytes));
    ++bytes;
  }
};

// Calls f(key, position) for every element of the row.
template <class U, class F>
__device__ inline void each_key(const Order<U>& order, const char* row, int64_t stride, int n, const F& f) {
  for (int64_t first = threadIdx.x; first < n; first += kAtOnce * kThreadsHere) {
    U bits[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {  // issues all loads first, so that they wait together
      const int64_t i = first + k * kThreadsHere;
      bits[k] = i < n ? *reinterpret_cast<const U*>(row + i * stride) : U(0);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (first + k * kThreadsHere < n) f(order.key(bits[k]), uint32_t(first + k * kThreadsHere));
  }
}

// Returns the byte value at which the running sum of the counts reaches `wanted`, and the sum before it. All threads of the first
// warp must call it, and all get the same result.
struct Found {
  unsigned byte;
  uint32_t before;
};
__device__ inline Found find(const uint32_t* counts, uint32_t wanted) {
  constexpr int kEach = 256 / int(kWarp);
  const unsigned lane = threadIdx.x;
  uint32_t own = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) own += counts[kEach * lane + k];
  uint32_t sum = own;
#pragma unroll
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kFull, sum, distance);
    if (lane >= distance) sum += other;
  }
  const int source = __ffs(int(__ballot_sync(kFull, sum >= wanted))) - 1;
  uint32_t before = sum - own;
  unsigned byte = kEach * lane;
#pragma unroll
  for (int k = 0; k < kEach - 1; ++k) {
    const uint32_t count = counts[byte];
    if (before + count < wanted) before += count, ++byte;
    else break;
  }
  return {__shfl_sync(kFull, byte, source), __shfl_sync(kFull, before, source)};
}

template <class U> __global__ void __launch_bounds__(kThreadsHere)
    first_of_rows(Order<U> order, const __grid_constant__ Task task) {
  constexpr uint32_t kRoom = uint32_t(merge::kLongest<U>);
  __shared__ uint32_t counts[256], before, within;
  __shared__ unsigned byte;
  const char* row = task.in.row(blockIdx.x);
  Bound<U> bound;
  uint32_t kept = 0, total;  // the number of elements below the bound, and of those not above it
  do {
    if (threadIdx.x < 256) counts[threadIdx.x] = 0;
    __syncthreads();
    uint32_t run = 0;  // consecutive equal bytes are added at once
    unsigned last = 0;
    each_key(order, row, task.in.stride, int(task.n), [&](U key, uint32_t position) {
      if (bound.compare(key, position) != 0) return;
      const unsigned next = bound.next_byte(key, position);
      if (next != last && run > 0) {
        atomicAdd(&counts[last], run);
        run = 0;
      }
      last = next, ++run;
    });
    if (run > 0) atomicAdd(&counts[last], run);
    __syncthreads();
    if (threadIdx.x < kWarp) {
      const Found found = find(counts, uint32_t(task.k) - kept);
      if (threadIdx.x == 0) byte = found.byte, before = found.before, within = counts[found.byte];
    }
    __syncthreads();
    bound.append(byte);
    kept += before, total = kept + within;
    __syncthreads();
  } while (total > kRoom);

  using I = Keyed<U>;
  I* const items = reinterpret_cast<I*>(pb_shared);
  if (threadIdx.x == 0) within = 0;
  __syncthreads();
  each_key(order, row, task.in.stride, int(task.n), [&](U key, uint32_t position) {
    if (bound.compare(key, position) > 0) return;
    items[merge::slot(int(atomicAdd(&within, 1u)))] = I(key, position);  // in any order, because they are sorted next
  });
  __syncthreads();
  const int begin = int(threadIdx.x) * merge::kEach;
  merge::sort_shared(items, int(total), begin, begin < int(total), I(U(~U(0)), ~uint32_t(0)));
  __syncthreads();
  char* const to = task.out.row(blockIdx.x);
  for (int i = int(threadIdx.x); i < task.k; i += kThreadsHere)
    *reinterpret_cast<int64_t*>(to + i * task.out.stride) = items[merge::slot(i)].position();
}

template <class U> void start_rows(const Order<U>& order, const Task& task) {
  const size_t shared = size_t(merge::slot(int(merge::kLongest<U>) - 1) + 1) * sizeof(Keyed<U>);
  start(first_of_rows<U>, blocks_for(task.rows, 1), kThreadsHere, shared, order, task);
}

}  // namespace pb::cuda::select
