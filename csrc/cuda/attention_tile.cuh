// The exponentials of a few queries, which a block of threads computes in shared memory, for attention and its derivatives.
#pragma once
#include "cuda/attention.cuh"
#include "cuda/copy.cuh"
#include "families/rows.h"

namespace pb::cuda {

// The queries of a block of threads, and their scores.
template <class C> struct QueryTile {
  static constexpr int kRows = kQueryRows<C>;
  C s[kRows][kAttentionKeys];
  C q[kRows][kAttentionWidth], g[kRows][kAttentionWidth];
  C inverse[kRows], along[kRows];
};

// The queries of this block of threads: those from l on, of which `rows` exist, of a head.
struct QueryBlock {
  int64_t head;
  int l, rows;
  template <int kRows, class T> __device__ static QueryBlock own(const AttentionOperands<T>& p) {
    const int tiles = (p.queries + kRows - 1) / kRows, l = int(blockIdx.x % unsigned(tiles)) * kRows;
    return {int64_t(blockIdx.x / unsigned(tiles)), l, min(kRows, p.queries - l)};
  }
};

// Computes the exponentials of row i, and one over their sum. A warp does one row.
template <class T, class Tile> __device__ void exponentials(const AttentionOperands<T>& p, const QueryBlock& b, int i,
                                                            Tile& t) {
  using C = acc_t<T>;
  const int lane = int(threadIdx.x % kWarp), n = p.visible(b.l + i), limit = p.limit(b.l + b.rows - 1);
  C top = m::lowest<C>();
  for (int j = lane; j < n; j += int(kWarp)) top = kernels::largest::combine(top, t.s[i][j]);
#pragma unroll
  for (int far = kWarp / 2; far > 0; far /= 2) top = kernels::largest::combine(top, shuffle_xor(top, far));
  if (top == m::lowest<C>()) top = C(0);
  const C sum = sum_of_warp<C>(n, [&](int j) { return t.s[i][j] = m::exp_nonpositive(C(t.s[i][j] - top)); });
  for (int j = lane; j < limit; j += int(kWarp)) t.s[i][j] = j < n ? p.factor(t.s[i][j]) : C(0);
  if (lane != 0) return;
  const C inverse = C(1) / sum;
  t.inverse[i] = m::select(sum == C(0), C(0), inverse);
  if (p.top) {
    const int64_t row = b.head * p.queries + b.l + i;
    p.top[row] = top, p.inverse[row] = t.inverse[i];
  }
}

// Computes the exponentials of all rows of a tile.
template <class T, class Tile> __device__ void weigh(const AttentionOperands<T>& p, const QueryBlock& b, Tile& t) {
  using C = acc_t<T>;
  const int limit = p.limit(b.l + b.rows - 1), warp = int(threadIdx.x / kWarp);
  const T* const q = p.q + (b.head * p.queries + b.l) * p.width;
  for (int i = int(threadIdx.x); i < Tile::kRows * p.width; i += int(kThreads)) {
    const int row = i / p.width;
    t.q[row][i % p.width] = row < b.rows ? p.factor(C(C(q[i]) * p.scale)) : C(0);
  }
  __syncthreads();
  const T* const k = p.k + b.head / p.shared * p.keys * p.width;
  const char* const mask = p.mask.data ? p.head_of(p.mask, b.head) : nullptr;
  const int64_t down = p.mask.data ? p.mask.stride[p.mask.ndim - 2] : 0;
  for (int j = int(threadIdx.x); j < limit; j += int(kThreads)) {
    C sum[Tile::kRows] = {};
#pragma unroll 1
    for (int d = 0; d < p.width; ++d) {
      const C key = p.factor(C(k[int64_t(j) * p.width + d]));
#pragma unroll
      for (int i = 0; i < Tile::kRows; ++i) multiply_add(sum[i], t.q[i][d], key);
    }
#pragma unroll
    for (int i = 0; i < Tile::kRows; ++i) {
      if (i >= b.rows || j >= p.visible(b.l + i)) continue;
      t.s[i][j] = mask ? p.masked(sum[i], mask + (b.l + i) * down, j) : sum[i];
    }
  }
  __syncthreads();
  for (int i = warp; i < b.rows; i += int(kThreads / kWarp)) exponentials(p, b, i, t);
  __syncthreads();
}

// ---- the host

// Returns keys or values in contiguous memory. A copy has only those that a query sees. Null if there are none.
template <class T> const T* seen_rows(const View& of, int64_t seen, Scratch& scratch) {
  if (!of.data || of.contiguous()) return of.as<T>();
  View from = of, to = contiguous_view(scratch.take_bytes(size_t(of.bytes())), of.dtype, of);
  from.shape[of.ndim - 2] = to.shape[of.ndim - 2] = seen;
  assign(to, from);
  return to.as<T>();
}

// values: whether the kernel reads the values.
template <class T> AttentionOperands<T> operands_of(const kernels::Attention& a, bool values, Scratch& scratch) {
  AttentionOperands<T> p{};
  p.q = contiguous_as(a.q.dtype, a.q, scratch).template as<T>();
  p.k = seen_rows<T>(a.k, a.seen_keys(), scratch);
  if (values) p.v = seen_rows<T>(a.v, a.seen_keys(), scratch);
  p.mask = a.mask, p.scale = acc_t<T>(a.scale), p.precision = kernels::precision(), p.causal = a.causal;
  p.groups = int(a.groups), p.shared = int(a.shared), p.queries = int(a.queries), p.keys = int(a.keys),
  p.seen = int(a.seen_keys());
  p.width = int(a.width), p.value_width = int(a.value_width);
  return p;
}

template <int kRows> dim3 query_blocks(const kernels::Attention& a) {
  return blocks_for(a.all_heads() * ((a.queries + kRows - 1) / kRows), 1);
}

}  // namespace pb::cuda
