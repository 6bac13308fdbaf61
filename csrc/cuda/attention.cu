// Attention. A block of threads computes the scores of a few queries in shared memory, and what they contribute to the result or to
// the gradient of the queries. For the gradients of keys and values, a block has a few keys, and goes through the queries.
#include "families/attention.h"

#include "cuda/attention_tile.cuh"

namespace pb::cuda {
namespace {

using kernels::BackwardAttention;
using kernels::ForwardAttention;

template <class T> __global__ void __launch_bounds__(kThreads, 3)
    attend(const __grid_constant__ AttentionOperands<T> p, T* out) {
  using C = acc_t<T>;
  __shared__ QueryTile<C> t;
  const auto b = QueryBlock::own<kQueryRows<C>>(p);
  weigh(p, b, t);
  const int limit = p.limit(b.l + b.rows - 1), width = p.value_width;
  const T* const v = p.v + b.head / p.shared * p.keys * width;
  for (int at = int(threadIdx.x); at < b.rows * width; at += int(kThreads)) {
    const int i = at / width, d = at % width;
    const C sum = sum_weighted(limit, t.s[i], [&](int j) { return p.factor(C(v[int64_t(j) * width + d])); });
    out[(b.head * p.queries + b.l) * width + at] = T(sum * t.inverse[i]);
  }
}

// Reads the cotangents of y over the sums of the exponentials, and sums their products with y.
template <class T, class Tile> __device__ void read_cotangents(const AttentionOperands<T>& p, const QueryBlock& b, Tile& t) {
  using C = acc_t<T>;
  const int width = p.value_width, warp = int(threadIdx.x / kWarp);
  const int64_t first = (b.head * p.queries + b.l) * width;
  for (int at = int(threadIdx.x); at < Tile::kRows * width; at += int(kThreads)) {
    const int i = at / width;
    t.g[i][at % width] = i < b.rows ? C(C(p.g[first + at]) * t.inverse[i]) : C(0);
  }
  __syncthreads();
  for (int i = warp; i < b.rows; i += int(kThreads / kWarp)) {
    const T* const y = p.y + first + i * width;
    const C sum = sum_of_warp<C>(width, [&](int d) { return C(t.g[i][d] * C(y[d])); });
    for (int d = int(threadIdx.x % kWarp); d < width; d += int(kWarp)) t.g[i][d] = p.factor(t.g[i][d]);
    if (threadIdx.x % kWarp == 0) t.along[i] = p.along[b.head * p.queries + b.l + i] = sum;
  }
  __syncthreads();
}

// Computes the gradient of the queries, unless gq is null, and what pull_keys reads of each row.
template <class T> __global__ void __launch_bounds__(kThreads, 3)
    pull_queries(const __grid_constant__ AttentionOperands<T> p, T* gq, bool to_scores) {
  using C = acc_t<T>;
  __shared__ QueryTile<C> t;
  const auto b = QueryBlock::own<kQueryRows<C>>(p);
  weigh(p, b, t);
  if (!to_scores) return;
  read_cotangents(p, b, t);
  if (!gq) return;
  const int limit = p.limit(b.l + b.rows - 1), width = p.value_width;
  const T* const v = p.v + b.head / p.shared * p.keys * width;
  for (int j = int(threadIdx.x); j < limit; j += int(kThreads)) {
    C sum[kQueryRows<C>] = {};
#pragma unroll 1
    for (int d = 0; d < width; ++d) {
      const C value = p.factor(C(v[int64_t(j) * width + d]));
#pragma unroll
      for (int i = 0; i < kQueryRows<C>; ++i) multiply_add(sum[i], t.g[i][d], value);
    }
#pragma unroll
    for (int i = 0; i < kQueryRows<C>; ++i) {
      if (i >= b.rows) continue;
      const C weight = t.s[i][j], gs = j < p.visible(b.l + i) ? p.factor(C(weight * (sum[i] - t.along[i]))) : C(0);
      t.s[i][j] = weight == C(0) ? C(0) : gs;
    }
  }
  __syncthreads();
  const T* const k = p.k + b.head / p.shared * p.keys * p.width;
  for (int at = int(threadIdx.x); at < b.rows * p.width; at += int(kThreads)) {
    const int i = at / p.width, d = at % p.width;
    const C sum = sum_weighted(limit, t.s[i], [&](int j) { return p.factor(C(k[int64_t(j) * p.width + d])); });
    gq[(b.head * p.queries + b.l) * p.width + at] = T(sum * p.scale);
  }
}

// A few keys with their values, and the rows whose contributions are added to their gradients next.
template <class C> struct KeyTile {
  static constexpr int kSide = kKeySide<C>;
  C k[kSide][kAttentionWidth], v[kSide][kAttentionWidth], q[kSide][kAttentionWidth], g[kSide][kAttentionWidth];
  C weight[kSide][kSide], gs[kSide][kSide];  // of a row and a key
  int visible[kSide], limit[kSide];
  const char* mask[kSide];
};

// Reads the keys from key j0 on, and their values if `values`. Those that do not exist, or that no query sees, are 0.
template <class T, class Tile>
__device__ void read_keys(const AttentionOperands<T>& p, int64_t task, int j0, bool values, Tile& t) {
  using C = acc_t<T>;
  const int64_t first = task * p.keys + j0;
  for (int at = int(threadIdx.x); at < Tile::kSide * p.width; at += int(kThreads))
    t.k[at / p.width][at % p.width] = j0 + at / p.width < p.seen ? p.factor(C(p.k[first * p.width + at])) : C(0);
  if (!values) return;
  for (int at = int(threadIdx.x); at < Tile::kSide * p.value_width; at += int(kThreads)) {
    const int j = at / p.value_width;
    t.v[j][at % p.value_width] = j0 + j < p.seen ? p.factor(C(p.v[first * p.value_width + at])) : C(0);
  }
}

// Reads `rows` rows of a task from row r on. Divisions are done here, once for each row, and not for each pair. Returns false if a
// number that this thread has read is infinite or NaN.
template <class T, class Tile> __device__ bool read_rows(const AttentionOperands<T>& p, int64_t task, int64_t r, int rows,
                                                         Tile& t) {
  using C = acc_t<T>;
  const int64_t row = task * p.shared * p.queries + r;
  bool finite = true;
  for (int at = int(threadIdx.x); at < rows * p.width; at += int(kThreads)) {
    const C x = p.factor(C(C(p.q[row * p.width + at]) * p.scale));
    t.q[at / p.width][at % p.width] = x;
    finite &= m::isfinite(x);
  }
  for (int at = int(threadIdx.x); at < rows * p.value_width; at += int(kThreads)) {
    const int i = at / p.value_width;
    const C x = p.factor(C(C(p.g[row * p.value_width + at]) * p.inverse[row + i]));
    t.g[i][at % p.value_width] = x;
    finite &= m::isfinite(x);
  }
  const int i = int(threadIdx.x);
  if (i >= rows) return finite;
  const int64_t head = (r + i) / p.queries;
  const int l = int(r + i - head * p.queries);
  t.visible[i] = p.visible(l), t.limit[i] = p.limit(l);
  if (p.mask.data) t.mask[i] = p.head_of(p.mask, task * p.shared + head) + l * p.mask.stride[p.mask.ndim - 2];
  return finite;
}

// Computes the exponentials of all pairs of a row and a key, and the cotangents of their scores.
template <class T, class Tile>
__device__ void pair_up(const AttentionOperands<T>& p, int64_t row, int rows, int j0, bool to_scores, Tile& t) {
  using C = acc_t<T>;
  for (int at = int(threadIdx.x); at < rows * Tile::kSide; at += int(kThreads)) {
    const int i = at / Tile::kSide, j = at % Tile::kSide;
    C weight = C(0), gs = C(0);
    if (j0 + j < t.visible[i]) {
      C s = C(0), sum = C(0);
#pragma unroll 4
      for (int d = 0; d < p.width; ++d) multiply_add(s, t.q[i][d], t.k[j][d]);
      if (p.mask.data) s = p.masked(s, t.mask[i], j0 + j);
      weight = p.factor(m::exp_nonpositive(C(s - p.top[row + i])));
      if (to_scores) {
#pragma unroll 4
        for (int d = 0; d < p.value_width; ++d) multiply_add(sum, t.g[i][d], t.v[j][d]);
        gs = p.factor(C(weight * (sum - p.along[row + i])));
        gs = weight == C(0) ? C(0) : gs;
      }
    }
    t.weight[i][j] = weight, t.gs[i][j] = gs;
  }
}

// The key and the column of those sums of a gradient (kSide, width) that a thread has, one after another. There is one division for
// all of them.
struct SumPosition {
  int key, column, keys_apart, columns_apart, width;

  __device__ explicit SumPosition(int width)
      : key(int(threadIdx.x) / width),
        column(int(threadIdx.x) % width),
        keys_apart(int(kThreads) / width),
        columns_apart(int(kThreads) % width),
        width(width) {}
  __device__ void next() {
    key += keys_apart, column += columns_apart;
    if (column >= width) column -= width, ++key;
  }
};

// Adds the contributions of the rows of a tile to those sums of a gradient (kSide, width) that this thread has.
template <int kSums, class Tile, class C, class W, class R>
__device__ __forceinline__ void add_rows(const Tile& t, int rows, int j0, int width, bool finite, const W& weight, const R& row,
                                         C (&sum)[kSums]) {
  SumPosition at(width);
#pragma unroll
  for (int n = 0; n < kSums; ++n, at.next()) {
    const int j = at.key, d = at.column;
    if (j >= Tile::kSide) continue;
#pragma unroll 1
    for (int i = 0; i < rows; ++i)
      if (j0 + j < t.limit[i]) {
        if (finite) multiply_add(sum[n], weight[i][j], row[i][d]);
        else add_seen(sum[n], weight[i][j], row[i][d]);
      }
  }
}
template <class Tile, int kSums, class C, class T>
__device__ __forceinline__ void write_sums(int64_t first, int keys, int width, const C (&sum)[kSums], C* partial, T* out) {
#pragma unroll
  for (int n = 0; n < kSums; ++n) {
    const int at = int(threadIdx.x) + n * int(kThreads);
    if (at >= min(keys, Tile::kSide) * width) continue;
    if (partial) partial[first * width + at] = sum[n];
    else out[first * width + at] = T(sum[n]);
  }
}

// The gradients of keys and values, or one number for each block of rows (families/order.h) if there are several blocks. Null if
// they are not needed.
template <class T> struct KeyGradients {
  T *gk, *gv;
  acc_t<T>*of_k, *of_v;
  int blocks;
};

template <class T> __global__ void __launch_bounds__(kThreads, 3)
    pull_keys(const __grid_constant__ AttentionOperands<T> p, const __grid_constant__ KeyGradients<T> to) {
  using C = acc_t<T>;
  using Tile = KeyTile<C>;
  constexpr int kSums = Tile::kSide * int(kAttentionWidth) / int(kThreads);
  __shared__ Tile t;
  // Tiles of keys, blocks of rows and tasks share one axis of the grid: the others have at most 65,535 blocks.
  const unsigned tiles = unsigned(p.keys + Tile::kSide - 1) / Tile::kSide, rest = blockIdx.x / tiles;
  const int j0 = int(blockIdx.x - rest * tiles) * Tile::kSide;
  const unsigned task_of = rest / unsigned(to.blocks);
  const int64_t task = task_of, all = int64_t(p.shared) * p.queries;
  const int64_t first = int64_t(rest - task_of * unsigned(to.blocks)) * kOrderBlock;
  const int length = int(min(all - first, kOrderBlock));
  C gk[kSums] = {}, gv[kSums] = {};
  read_keys(p, task, j0, to.gk != nullptr, t);
#pragma unroll 1
  for (int r = 0; r < length; r += Tile::kSide) {
    const int rows = min(Tile::kSide, length - r);
    __syncthreads();
    const bool finite = __syncthreads_and(read_rows(p, task, first + r, rows, t));
    pair_up(p, task * all + first + r, rows, j0, to.gk != nullptr, t);
    __syncthreads();
    if (to.gk) add_rows(t, rows, j0, p.width, finite, t.gs, t.q, gk);
    if (to.gv) add_rows(t, rows, j0, p.value_width, finite, t.weight, t.g, gv);
  }
  const int64_t key = int64_t(rest) * p.keys + j0;
  if (to.gk) write_sums<Tile>(key, p.keys - j0, p.width, gk, to.of_k, to.gk);
  if (to.gv) write_sums<Tile>(key, p.keys - j0, p.value_width, gv, to.of_v, to.gv);
}

// Combines the blocks of each element of a gradient of n elements per task, in pairs of neighbours and in place.
template <class T> __global__ void __launch_bounds__(kThreads, 3)
    combine_keys(acc_t<T>* partial, T* out, int blocks, int64_t n, int64_t elements) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  acc_t<T>* const of = partial + i / n * blocks * n + i % n;
#pragma unroll 1
  for (int left = blocks; left > 1; left = (left + 1) / 2)
#pragma unroll 1
    for (int b = 0; b < left; b += 2) of[b / 2 * n] = b + 1 < left ? acc_t<T>(of[b * n] + of[(b + 1) * n]) : of[b * n];
  out[i] = T(of[0]);
}

// ---- the host

template <class T> void run_forward(const ForwardAttention& a) {
  Scratch scratch;
  start(attend<T>, query_blocks<kQueryRows<acc_t<T>>>(a), dim3(kThreads), 0, operands_of<T>(a, true, scratch),
        a.y.template as<T>());
}

template <class T> void run_backward(const BackwardAttention& a) {
  using C = acc_t<T>;
  Scratch scratch;
  const bool to_scores = a.gq.data || a.gk.data;
  AttentionOperands<T> p = operands_of<T>(a, to_scores, scratch);
  p.g = contiguous_as(a.g.dtype, a.g, scratch).template as<T>();
  if (to_scores) p.y = contiguous_as(a.y.dtype, a.y, scratch).template as<T>();
  const int64_t rows = a.all_rows();
  p.top = scratch.take<C>(rows), p.inverse = scratch.take<C>(rows), p.along = scratch.take<C>(rows);
  start(pull_queries<T>, query_blocks<kQueryRows<C>>(a), dim3(kThreads), 0, p, a.gq.template as<T>(), to_scores);
  if (!a.gk.data && !a.gv.data) return;
  const int64_t blocks = kernels::order_blocks(a.rows()), keys = a.tasks() * a.keys;
  KeyGradients<T> to{a.gk.template as<T>(), a.gv.template as<T>(), nullptr, nullptr, int(blocks)};
  if (a.width == 0) to.gk = nullptr;
  if (a.value_width == 0) to.gv = nullptr;
  if (blocks > 1) {
    if (to.gk) to.of_k = scratch.take<C>(blocks * keys * a.width);
    if (to.gv) to.of_v = scratch.take<C>(blocks * keys * a.value_width);
  }
  const int64_t tiles = (a.keys + kKeySide<C> - 1) / kKeySide<C>;
  start(pull_keys<T>, blocks_for(a.tasks() * blocks * tiles, 1), dim3(kThreads), 0, p, to);
  if (blocks == 1) return;
  if (to.gk)
    start(combine_keys<T>, blocks_for(keys * a.width), dim3(kThreads), 0, to.of_k, to.gk, to.blocks, a.keys * a.width,
          keys * a.width);
  if (to.gv)
    start(combine_keys<T>, blocks_for(keys * a.value_width), dim3(kThreads), 0, to.of_v, to.gv, to.blocks,
          a.keys * a.value_width, keys * a.value_width);
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

bool fits_attention(int64_t queries, int64_t keys, int64_t width, int64_t value_width) {
  return keys <= cuda::kAttentionKeys && width <= cuda::kAttentionWidth && value_width <= cuda::kAttentionWidth &&
         queries < (int64_t{1} << 30);  // the kernels count the queries of a head in ints
}

void run_attention(const Launch& launch) {
  const ForwardAttention a(launch);
  if (a.empty() || a.value_width == 0) return;
  if (a.keys == 0) return cuda::assign_number(a.y, 0);
  cuda::visit_stored_float(a.q.dtype, [&](auto tag) { cuda::run_forward<typename decltype(tag)::type>(a); });
}

void run_attention_pullback(const Launch& launch) {
  const BackwardAttention a(launch);
  if (a.unseen()) {
    for (int k = 0; k < launch.outputs; ++k)
      if (launch.out(k).data && launch.out(k).size() != 0) cuda::assign_number(launch.out(k), 0);
    return;
  }
  cuda::visit_stored_float(a.q.dtype, [&](auto tag) { cuda::run_backward<typename decltype(tag)::type>(a); });
}

}  // namespace pb::kernels
