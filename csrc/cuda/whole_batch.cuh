// One loss for all rows of a batch, in the launch that computes the losses of the rows.
#pragma once
#include "cuda/cross_entropy.cuh"

namespace pb::cuda {

// Up to kAtOnce rows are one launch, in which every block counts the labels that it needs, and the last block to arrive combines all
// losses. For more rows separate launches do that, in which several blocks share the work.
constexpr int kAtOnce = 1024;
constexpr int kAtOnceBlocks = kAtOnce / int(kOrderBlock);

struct Adds {
  template <class A> static __device__ A combine(A a, A b) { return a + b; }
};

// Reads a float that another block has written. Only if T is AnyHalf, the dtype matters.
template <class T> __device__ inline acc_t<T> fresh_float(DType dtype, const T* p) {
  if constexpr (sizeof(T) == 2) {
    const uint16_t bits = __ldcg(reinterpret_cast<const uint16_t*>(p));
    return read<T>(dtype, reinterpret_cast<const char*>(&bits));
  } else {
    return __ldcg(p);
  }
}
// Returns x rounded to a number of type T.
template <class T> __device__ inline acc_t<T> rounded_to(DType dtype, acc_t<T> x) {
  T y;
  write<T>(dtype, reinterpret_cast<char*>(&y), x);
  return read<T>(dtype, reinterpret_cast<const char*>(&y));
}

// Returns the sum of n <= kAtOnce terms, which other blocks may have written, in the order of families/order.h. All lanes of a warp
// call it.
template <class T> __device__ inline acc_t<T> sum_of(DType dtype, const T* terms, int n) {
  using C = acc_t<T>;
  C a[kAtOnceBlocks][kShare], sum[kAtOnceBlocks];
#pragma unroll
  for (int b = 0; b < kAtOnceBlocks; ++b)
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      const int i = b * int(kOrderBlock) + s * int(kWarp) + int(threadIdx.x % kWarp);
      a[b][s] = i < n ? fresh_float(dtype, terms + i) : no_term<sum_reduce, C>();
    }
#pragma unroll
  for (int b = 0; b < kAtOnceBlocks; ++b) {
    sum[b] = no_term<sum_reduce, C>();
    if (b * int(kOrderBlock) < n) sum[b] = fold_warp<sum_reduce>(fold_share<sum_reduce>(a[b]));
  }
#pragma unroll
  for (int far = 1; far < kAtOnceBlocks; far *= 2)
#pragma unroll
    for (int b = 0; b < kAtOnceBlocks; b += 2 * far) sum[b] = sum_reduce::combine(sum[b], sum[b + far]);
  return sum[0];
}
// Returns the additions of sum_of() in all lanes.
inline int64_t additions_of_sum(int64_t n) {
  return int64_t{kWarp} * (kernels::order_blocks(n) * (kShare - 1 + 5) + kAtOnceBlocks - 1);
}

// What the blocks of one launch do together for at most kAtOnce rows, whose losses are in working memory. By default each row has a
// loss and a cotangent, and the blocks do nothing together.
struct WholeBatch {
  bool mean = false;
  int rows = 0;
  const char* labels = nullptr;
  int64_t label_stride = 0;
  void* losses = nullptr;
  void* total = nullptr;  // where the loss of the batch is written, if it has one
  unsigned* ticket = nullptr;
  DType dtype = DType::f32;  // of the losses

  // Returns the number of rows that count. All threads of the block call it.
  __device__ int count_rows(const Labels& of) const {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    int own = 0;
    for (int k = int(threadIdx.x); k < rows; k += int(blockDim.x)) own += of.counts(labels + k * label_stride);
    own = fold_warp<Adds>(own);
    if (threadIdx.x % kWarp == 0) atomicAdd(&count, own);
    __syncthreads();
    return count;
  }
  // Returns the cotangent of a row's loss from that of the batch, as a number of type T.
  template <class T> __device__ acc_t<T> share_of(acc_t<T> g, int count) const {
    return mean ? rounded_to<T>(dtype, g / acc_t<T>(count)) : g;
  }
  // True in the last block that arrives after it has written its losses. All threads of the block call it.
  __device__ bool arrives_last() const {
    if (gridDim.x > 1) return last_to_arrive(ticket, gridDim.x);
    __syncthreads();
    return true;
  }
  template <class T> __device__ void finish(int count) const {
    if (threadIdx.x >= kWarp) return;
    const acc_t<T> sum = sum_of(dtype, static_cast<const T*>(losses), rows);
    if (threadIdx.x == 0) write<T>(dtype, static_cast<char*>(total), mean ? sum / acc_t<T>(count) : sum);
  }
};

inline bool is_one_launch(int64_t rows) { return rows > 0 && rows <= kAtOnce; }

}  // namespace pb::cuda
