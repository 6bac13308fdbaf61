// The tangent of attention. A block of threads has the exponentials of a few queries and the tangents of their scores in shared memory.
#include "cuda/attention_tile.cuh"

namespace pb::cuda {
namespace {

using kernels::TangentAttention;

template <class C> struct TangentTile {
  static constexpr int kRows = kTangentRows<C>;
  C s[kRows][kAttentionKeys], ts[kRows][kAttentionKeys];
  C q[kRows][kAttentionWidth], tq[kRows][kAttentionWidth];
  C inverse[kRows];
};

// The tangents of the operands, which are contiguous but for that of the mask. Null where there is none.
template <class T> struct Tangents {
  const T *q, *k, *v;
  View mask;
  __device__ bool moves_scores() const { return q || k || mask.data; }
};

// A weight of 0 gives 0, whatever x is.
template <class C> __device__ inline C weighted(C weight, C x) { return m::select(weight == C(0), C(0), C(weight * x)); }

// Computes the tangents of all scores of a tile.
template <class T, class Tile>
__device__ void move_scores(const AttentionOperands<T>& p, const Tangents<T>& by, const QueryBlock& b, Tile& t) {
  using C = acc_t<T>;
  const int limit = p.limit(b.l + b.rows - 1);
  const int64_t keys = b.head / p.shared * p.keys * p.width;
  const char* const mask = by.mask.data ? p.head_of(by.mask, b.head) : nullptr;
  const int64_t down = mask ? by.mask.stride[by.mask.ndim - 2] : 0, right = mask ? by.mask.stride[by.mask.ndim - 1] : 0;
  for (int j = int(threadIdx.x); j < limit; j += int(kThreads)) {
    C by_q[Tile::kRows] = {}, by_k[Tile::kRows] = {};
    const int64_t row = keys + int64_t(j) * p.width;
#pragma unroll 1
    for (int d = 0; d < p.width; ++d) {
      const C k = by.q ? p.factor(C(p.k[row + d])) : C(0), tk = by.k ? p.factor(C(by.k[row + d])) : C(0);
#pragma unroll
      for (int i = 0; i < Tile::kRows; ++i) {
        if (by.q) multiply_add(by_q[i], t.tq[i][d], k);
        if (by.k) multiply_add(by_k[i], t.q[i][d], tk);
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::kRows; ++i) {
      if (i >= b.rows || j >= p.visible(b.l + i)) continue;
      C ts = !by.k ? by_q[i] : !by.q ? by_k[i] : C(by_q[i] + by_k[i]);
      if (mask) {
        const C tm = p.number_of(by.mask, mask + (b.l + i) * down + j * right);
        ts = by.q || by.k ? C(ts + tm) : tm;
      }
      t.ts[i][j] = ts;
    }
  }
  __syncthreads();
}

// Subtracts the weighted mean of row i from the tangents of its scores, and multiplies them by the exponentials. A warp does one row.
template <class T, class Tile> __device__ void weigh_tangents(const AttentionOperands<T>& p, const QueryBlock& b, int i,
                                                              Tile& t) {
  using C = acc_t<T>;
  const int n = p.visible(b.l + i), limit = p.limit(b.l + b.rows - 1);
  const C sum = sum_of_warp<C>(n, [&](int j) { return weighted(t.s[i][j], t.ts[i][j]); });
  const C mean = sum * t.inverse[i];
  for (int j = int(threadIdx.x % kWarp); j < limit; j += int(kWarp))
    t.ts[i][j] = j < n ? p.factor(weighted(t.s[i][j], C(t.ts[i][j] - mean))) : C(0);
}

template <class T> __global__ void __launch_bounds__(kThreads, 3)
    move_attention(const __grid_constant__ AttentionOperands<T> p, const __grid_constant__ Tangents<T> by, T* out) {
  using C = acc_t<T>;
  constexpr int kRows = kTangentRows<C>;
  __shared__ TangentTile<C> t;
  const auto b = QueryBlock::own<kRows>(p);
  const int64_t first = b.head * p.queries + b.l;
  for (int i = int(threadIdx.x); by.q && i < kRows * p.width; i += int(kThreads)) {
    const int row = i / p.width;
    t.tq[row][i % p.width] = row < b.rows ? p.factor(C(C(by.q[first * p.width + i]) * p.scale)) : C(0);
  }
  weigh(p, b, t);
  const bool moves = by.moves_scores();
  if (moves) {
    move_scores(p, by, b, t);
    for (int i = int(threadIdx.x / kWarp); i < b.rows; i += int(kThreads / kWarp)) weigh_tangents(p, b, i, t);
    __syncthreads();
  }
  const int limit = p.limit(b.l + b.rows - 1), width = p.value_width;
  const int64_t keys = b.head / p.shared * p.keys * width;
  for (int at = int(threadIdx.x); at < b.rows * width; at += int(kThreads)) {
    const int i = at / width, d = at % width;
    C sum = C(0);
    if (moves) sum = sum_weighted(limit, t.ts[i], [&](int j) { return p.factor(C(p.v[keys + int64_t(j) * width + d])); });
    if (by.v) {
      const C more = sum_weighted(limit, t.s[i], [&](int j) { return p.factor(C(by.v[keys + int64_t(j) * width + d])); });
      sum = moves ? C(sum + more) : more;
    }
    out[first * width + at] = T(sum * t.inverse[i]);
  }
}

template <class T> void run_tangent(const TangentAttention& a) {
  constexpr int kRows = kTangentRows<acc_t<T>>;
  Scratch scratch;
  const AttentionOperands<T> p = operands_of<T>(a, a.moves_scores(), scratch);
  const T* const tq = a.tq.data ? contiguous_as(a.tq.dtype, a.tq, scratch).template as<T>() : nullptr;
  const Tangents<T> by{tq, seen_rows<T>(a.tk, p.seen, scratch), seen_rows<T>(a.tv, p.seen, scratch), a.tm};
  start(move_attention<T>, query_blocks<kRows>(a), dim3(kThreads), 0, p, by, a.y.template as<T>());
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_attention_tangent(const Launch& launch) {
  const TangentAttention a(launch);
  if (a.empty() || a.value_width == 0) return;
  if (a.keys == 0 || !a.moves()) return cuda::assign_number(a.y, 0);
  cuda::visit_stored_float(a.q.dtype, [&](auto tag) { cuda::run_tangent<typename decltype(tag)::type>(a); });
}

}  // namespace pb::kernels
