// The scores and the weights of a block of queries, which the kernels of attention share.
#pragma once
#include <algorithm>
#include <type_traits>

#include "cpu/attention_product.h"
#include "cpu/copy.h"
#include "cpu/rows.h"
#include "cpu/strips.h"
#include "families/attention.h"
#include "families/matmul.h"

namespace pb::cpu {

using kernels::Attention;
using kernels::kCausalRows;

constexpr int64_t kAttentionGrain = 200000;  // the fewest multiply-adds per thread
constexpr int64_t kScoreBytes = 48 * 1024;   // of the scores of a block of queries
constexpr int64_t kFewestRows = 12, kMostRows = 48;

// True if f(0), ..., f(n - 1) are true. They are combined as integers as wide as C, so that the loop becomes one of whole vectors.
template <class C, class F> bool holds_for_all(int64_t n, const F& f) {
  using Bits = std::conditional_t<sizeof(C) == 4, int32_t, int64_t>;
  Bits all = -1;
  for (int64_t i = 0; i < n; ++i) all &= f(i) ? Bits(-1) : Bits(0);
  return all != 0;
}

// What the forward and the backward pass share: the factors of a head, and its weights.
template <class C> class Heads {
 public:
  explicit Heads(const Attention& a)
      : a_(a),
        keys_(a.seen_keys()),
        width_(whole<C>(a.width)),
        value_width_(whole<C>(a.value_width)),
        pitch_(whole<C>(a.keys)),
        block_(std::clamp<int64_t>(kScoreBytes / std::max<int64_t>(1, pitch_ * int64_t(sizeof(C))), kFewestRows, kMostRows)),
        precision_(kernels::precision()) {
    if (a.causal) block_ = kCausalRows;
  }

  // Returns the end of the block of rows that begins at r. The queries of a block belong to one head, and to one tile if they are
  // causal; their rows, to one block of families/order.h.
  int64_t block_end(int64_t r, int64_t last) const {
    const int64_t l = r % a_.queries, head = a_.queries - l, order = kOrderBlock - r % kOrderBlock;
    const int64_t rows = a_.causal ? kCausalRows - l % kCausalRows : block_;
    return std::min(last, r + std::min({rows, head, order}));
  }

 protected:
  // True if rows of the operand are contiguous numbers of the type C.
  static bool is_plain(const View& of) {
    return of.dtype == storage_of(compute_of<C>) &&
           (of.stride[of.ndim - 1] == int64_t(sizeof(C)) || of.shape[of.ndim - 1] <= 1);
  }
  // Returns a row in the type C: in place if possible, otherwise in `room`.
  static const C* read(const View& of, const char* row, int64_t n, C* room) {
    if (is_plain(of)) return reinterpret_cast<const C*>(row);
    load(of.dtype, compute_of<C>, row, of.stride[of.ndim - 1], n, room);
    return room;
  }
  // Writes a row times a factor. May change `from`.
  static void write(const View& of, char* row, int64_t n, C* from, C factor) {
    C* const to = is_plain(of) ? reinterpret_cast<C*>(row) : from;
#pragma GCC ivdep
    for (int64_t d = 0; d < n; ++d) to[d] = from[d] * factor;
    if (to == from) store(compute_of<C>, of.dtype, from, n, row, of.stride[of.ndim - 1]);
  }

  // Returns the keys or the values of a task, in place if they can be read as whole vectors, otherwise copied to `room`.
  Block<C> rows_of(const View& of, int64_t task, C* room) const {
    const int64_t n = of.shape[of.ndim - 1], ld = whole<C>(n), down = of.stride[of.ndim - 2];
    if (of.dtype == storage_of(compute_of<C>) && !rounds<C>(precision_) && ld == n &&
        of.stride[of.ndim - 1] == int64_t(sizeof(C)) && down % int64_t(sizeof(C)) == 0)
      return {reinterpret_cast<const C*>(a_.key(of, task, 0)), down / int64_t(sizeof(C))};
    for (int64_t j = 0; j < keys_; ++j) {
      C* const to = room + j * ld;
      const C* const from = read(of, a_.key(of, task, j), n, to);
      if (from != to) std::copy_n(from, n, to);
      std::fill(to + n, to + ld, C(0));
    }
    round_to(precision_, keys_ * ld, room);
    return {room, ld};
  }
  // Packs rows (keys, n) into panels of columns (n, keys).
  Panels<C> turned(Block<C> from, int64_t n, C* to) const {
    constexpr int64_t kPanel = 2 * kWidth<C>;
    for (int64_t j = 0; j < keys_; j += kWidth<C>)
      turn_strip(std::min<int64_t>(kWidth<C>, keys_ - j), n, from.data + j * from.ld, from.ld,
                 to + j / kPanel * kPanel * n + j % kPanel, kPanel);
    return {to, kPanel, kPanel * n};
  }
  int64_t turned_size(int64_t n) const { return (keys_ + 2 * kWidth<C> - 1) / (2 * kWidth<C>)*2 * kWidth<C> * n; }

  // Reads rows [r, r + m) of an operand, times factor(i) for row r + i, with zeros up to whole vectors.
  template <class F> void scaled(const View& of, int64_t task, int64_t r, int64_t m, C* to, const F& factor) const {
    const int64_t n = of.shape[of.ndim - 1], ld = whole<C>(n);
    for (int64_t i = 0; i < m; ++i) {
      C* const row = to + i * ld;
      const C* const from = read(of, a_.row(of, task, r + i), n, row);
      const C by = factor(i);
#pragma GCC ivdep
      for (int64_t d = 0; d < n; ++d) row[d] = from[d] * by;
      std::fill(row + n, row + ld, C(0));
    }
  }

  void add_mask(const char* row, int64_t n, C* s, C* room) const {
    const int64_t step = a_.mask.stride[a_.mask.ndim - 1];
    if (a_.mask.dtype == DType::b8) {
      for (int64_t j = 0; j < n; ++j)
        if (!*reinterpret_cast<const bool*>(row + j * step)) s[j] = m::lowest<C>();
    } else {
      const C* const added = read(a_.mask, row, n, room);
      for (int64_t j = 0; j < n; ++j) s[j] = m::select(added[j] == m::lowest<C>(), added[j], C(s[j] + added[j]));
    }
  }
  // Returns the largest score. It ignores NaN, because the sum of exponentials is NaN anyway. Reads s up to whole vectors.
  static C largest(int64_t n, const C* s) {
    constexpr int64_t kLanes = 4 * kWidth<C>;
    C top[kLanes];
    std::fill_n(top, kLanes, m::lowest<C>());
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes)
      for (int64_t l = 0; l < kLanes; ++l) top[l] = kernels::largest::combine(s[j + l], top[l]);
    for (; j < n; j += kWidth<C>)
      for (int64_t l = 0; l < kWidth<C>; ++l)
        top[l] = kernels::largest::combine(m::select(j + l < n, s[j + l], m::lowest<C>()), top[l]);
    return reduce_lanes<kernels::largest, kLanes>(top);
  }
  // Turns the scores of a query into exponentials, and those beyond n, up to `limit`, into zeros. Returns one over their sum.
  static C exponentials(int64_t n, int64_t limit, C* s) {
    C top = largest(n, s);
    top = m::select(top == m::lowest<C>(), C(0), top);
    const int64_t padded = whole<C>(n);  // a remainder would take as long as several vectors
#pragma GCC ivdep
    for (int64_t j = 0; j < padded; ++j) s[j] = m::exp_nonpositive(C(s[j] - top));
    const C sum = Loop{n}.fold<sum_reduce>([=](int64_t j) { return s[j]; });
    std::fill(s + n, s + limit, C(0));
    const C scale = C(1) / sum;
    return m::select(sum == C(0), C(0), scale);
  }
  // Computes the exponentials of rows [r, r + m), and one over the sum of each row. q: the queries times the scale.
  void weights(int64_t task, int64_t r, int64_t m, const C* q, Panels<C> k, C* s, C* inverse, C* room) const {
    const int64_t l = r % a_.queries, limit = a_.limit(l + m - 1);
    multiply(m, limit, a_.width, q, width_, k, s, pitch_);
    for (int64_t i = 0; i < m; ++i) {
      const int64_t n = a_.visible(l + i);
      if (a_.mask.data) add_mask(a_.row(a_.mask, task, r + i), n, s + i * pitch_, room);
      inverse[i] = exponentials(n, whole<C>(limit), s + i * pitch_);
      round_to(precision_, n, s + i * pitch_);
    }
  }

  // Adds a product to a sum, unless the weight is 0 and x is infinite or NaN.
  static C add_seen(C weight, C x, C sum) { return weight == C(0) && !m::isfinite(x) ? sum : m::fma(weight, x, sum); }
  // Computes again those elements of out (m, n) = weights (m, keys) @ x (keys, n) that are NaN, by add_seen().
  void leave_out_unseen(int64_t m, int64_t n, int64_t keys, const C* weights, Block<C> x, C* out) const {
    const int64_t ld = whole<C>(n);
    for (int64_t i = 0; i < m; ++i) {
      C* const row = out + i * ld;
      if (holds_for_all<C>(n, [=](int64_t d) { return !m::isnan(row[d]); })) continue;
      for (int64_t d = 0; d < n; ++d)
        if (m::isnan(row[d])) row[d] = seen_sum(keys, weights + i * pitch_, x.data + d, x.ld);
    }
  }

  const Attention& a_;
  const int64_t keys_, width_, value_width_, pitch_;  // the last three in whole vectors
  int64_t block_;
  const Precision precision_;

 private:
  static C seen_sum(int64_t n, const C* weights, const C* x, int64_t ld) {
    C sum(0);
    if (n > kOrderBlock) {
      const int64_t half = kernels::upper_half(kernels::order_blocks(n)) * kOrderBlock;
      sum = seen_sum(half, weights, x, ld);
      return m::isnan(sum) ? sum : C(sum + seen_sum(n - half, weights + half, x + half * ld, ld));
    }
    for (int64_t j = 0; j < n && !m::isnan(sum); ++j) sum = add_seen(weights[j], x[j * ld], sum);
    return sum;
  }
};

inline int64_t work_per_task(const Attention& a) {
  return std::max<int64_t>(1, a.rows() * a.keys * (a.width + a.value_width + 16));
}

// Adds the exponentials of the padding of rows to whole vectors.
template <class C> void add_padding(const Attention& a, Counts& work) {
  int64_t padding = 0;
  for (int64_t l = 0; l < a.queries; ++l) padding += whole<C>(a.visible(l)) - a.visible(l);
  work.adds += a.all_heads() * padding, work.special += a.all_heads() * padding;
}

// Adds the work of a product in tiles of n columns, rounded up to whole vectors, with sums of k products each, for m rows.
template <class C> void add_product(int64_t m, int64_t n, int64_t k, Counts& work) {
  work.fmas += m * whole<C>(n) * k, work.adds += m * whole<C>(n) * (kernels::order_blocks(k) - 1);
}

}  // namespace pb::cpu
