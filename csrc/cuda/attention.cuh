// The operands of attention on a GPU, and the sums of its kernels in the order of families/order.h.
#pragma once
#include "cuda/attention.h"
#include "cuda/element.cuh"
#include "cuda/multiply_add.cuh"
#include "cuda/operand.cuh"
#include "cuda/order.cuh"
#include "families/attention.h"
#include "families/matmul.h"

namespace pb::cuda {

using kernels::Precision;

static_assert(kAttentionKeys <= 4 * kOrderBlock, "BlockResults");

// The operands, which are contiguous but for the mask, and what the kernels of a backward pass hand on for each row.
template <class T> struct AttentionOperands {
  using C = acc_t<T>;
  const T *q, *k, *v, *g, *y;
  View mask;  // its data is null if there is none
  C scale;
  Precision precision;  // to which factors of float32 are rounded
  bool causal;
  int groups, shared, queries, keys, seen, width, value_width;
  C *top, *inverse, *along;

  __device__ int visible(int l) const { return causal ? min(keys, l + 1) : keys; }
  __device__ int limit(int l) const {
    constexpr int kTile = int(kernels::kCausalRows);
    return causal ? min(seen, (l / kTile + 1) * kTile) : keys;
  }
  // Rounds a factor of a product.
  __device__ C factor(C x) const {
    if constexpr (std::is_same_v<T, float>) return round_to(precision, x);
    else return x;
  }
  // Returns the address of query 0 of a head in a mask, or in its tangent. Heads are counted through all tasks.
  __device__ const char* head_of(const View& of, int64_t head) const {
    const int64_t all = int64_t(groups) * shared;
    int64_t outer = head / all;
    const char* at = of.data + head % all * of.stride[of.ndim - 3];
#pragma unroll 1
    for (int d = of.ndim - 4; d >= 0; --d) {
      at += outer % of.shape[d] * of.stride[d];
      outer /= of.shape[d];
    }
    return at;
  }
  // Returns a number of a mask, or of its tangent.
  __device__ static C number_of(const View& mask, const char* at) {
    if (!std::is_same_v<T, C> && mask.dtype == DType::f32) return C(*reinterpret_cast<const float*>(at));
    return C(*reinterpret_cast<const T*>(at));
  }
  // Returns the score of a query and key j. row: the mask of the query. A mask of -inf hides a score of NaN.
  __device__ C masked(C s, const char* row, int j) const {
    const char* at = row + j * mask.stride[mask.ndim - 1];
    if (mask.dtype == DType::b8) return *at ? s : m::lowest<C>();
    const C added = number_of(mask, at);
    return m::select(added == m::lowest<C>(), added, C(s + added));
  }
};

// The results of up to four blocks, which are combined in pairs of neighbours as they come. The blocks of a sum are a loop, because the
// code of four sums would be four times as long.
template <class C> struct BlockResults {
  C first = C(0), second = C(0);  // of the first two blocks and of the last two

  __device__ __forceinline__ void add(int block, C a) {
    const C pair = block % 2 == 1 ? C((block < 2 ? first : second) + a) : a;
    if (block < 2) first = pair;
    else second = pair;
  }
  __device__ __forceinline__ C combined(int blocks) const { return blocks > 2 ? C(first + second) : first; }
};

// Returns the sum of n products, n <= kAttentionKeys. add(a, j) adds product j to a.
template <class C, class F> __device__ __forceinline__ C sum_products(int n, const F& add) {
  const int blocks = int(kernels::order_blocks(n));
  BlockResults<C> results;
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    C sum = C(0);
    const int end = min(n, (b + 1) * int(kOrderBlock));
#pragma unroll 4
    for (int j = b * int(kOrderBlock); j < end; ++j) add(sum, j);
    results.add(b, sum);
  }
  return results.combined(blocks);
}

// Adds a product to a sum, unless the weight is 0 and x is infinite or NaN.
template <class C> __device__ inline void add_seen(C& sum, C weight, C x) {
  if (weight != C(0) || m::isfinite(x)) multiply_add(sum, weight, x);
}

// Returns the sum of the products of n weights and at(j). If it is NaN, it is computed again by add_seen().
template <class C, class F> __device__ __forceinline__ C sum_weighted(int n, const C* weights, const F& at) {
  const C sum = sum_products<C>(n, [&](C& a, int j) { multiply_add(a, weights[j], at(j)); });
  if (!m::isnan(sum)) return sum;
  return sum_products<C>(n, [&](C& a, int j) { add_seen(a, weights[j], at(j)); });
}

// All lanes of a warp get the sum of at(0) to at(n - 1), n <= kAttentionKeys.
template <class C, class F> __device__ __forceinline__ C sum_of_warp(int n, const F& at) {
  const int lane = int(threadIdx.x % kWarp), blocks = int(kernels::order_blocks(n));
  BlockResults<C> results;
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    C a[kShare];
#pragma unroll
    for (int s = 0; s < kShare; ++s) {
      const int j = b * int(kOrderBlock) + s * int(kWarp) + lane;
      a[s] = j < n ? at(j) : no_term<sum_reduce, C>();
    }
    C sum = fold_share<sum_reduce>(a);
#pragma unroll
    for (int far = kWarp / 2; far > 0; far /= 2) sum = sum + shuffle_xor(sum, far);
    results.add(b, sum);
  }
  return results.combined(blocks);
}

}  // namespace pb::cuda
