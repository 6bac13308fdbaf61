// Scaled dot-product attention: y = softmax(scale q k^T + mask) v. No array of all scores is formed.
#pragma once
#include <algorithm>

#include "families/order.h"
#include "launch/door.h"

namespace pb::kernels {

// attention: out: y (..., H, L, Ev). in: q (..., H, L, E), k (..., G, S, E), v (..., G, S, Ev), mask (..., H, L, S).
// attention_pullback: out: gq, gk, gv. in: g and y (..., H, L, Ev), q, k, v, mask.
// attention_tangent: out: the tangent of y. in: q, k, v, mask, and their tangents tq, tk, tv and tm, which is a mask of floats.
// The leading axes are the same in all operands; H is a multiple of G, and heads that follow one another share keys and values.
// Inputs are floats of one dtype and have any strides; outputs are contiguous. The data of a gradient that is not needed, and of a
// mask or a tangent that is not given, is null. A mask is added to the scores, or, if it is of bools, false leaves a score out. A mask
// of floats, or its tangent, may also have the dtype in which the scores are computed.
// ints[0]: 1 if query l sees keys 0 to l only. reals[0]: the scale.
extern const Kernel attention, attention_pullback, attention_tangent;

// A row is the query l of a head. The sums of the scores and of y are products in the order of order.h, for the queries times the
// scale. The exponentials are those of the scores minus their maximum, and y is divided by their sum at the end. If all scores of a
// row are -inf, its y and its gradients are 0.
// The gradients of k and v are products whose contraction runs over the heads that share them and over the queries of each head.
//
// The tangents of the scores, ts, are the products of tq and k and of q and tk, added up, plus tm. With the exponentials e of a row
// and the mean m of ts weighted by e, the tangent of y is the product of e (ts - m) and v plus that of e and tv, over the sum of e.
//
// A pair whose weight is 0, because of the mask or because its score is too low, contributes nothing, even if the key, the value
// or the query has numbers that are infinite or NaN: where a product is NaN, it is computed again without these terms.
//
// In causal attention, each tile of kCausalRows queries computes the products with all keys that one of them sees; the weights of
// the other keys are 0.
constexpr int64_t kCausalRows = 16;

struct Attention {
  const View &y, &q, &k, &v, &mask;
  bool causal;
  double scale;
  int64_t outer, heads, groups, shared, queries, keys, width, value_width;  // shared: the heads that share keys and values

  Attention(const Launch& launch, const View& y_, int first)
      : y(y_),
        q(launch.in(first)),
        k(launch.in(first + 1)),
        v(launch.in(first + 2)),
        mask(launch.in(first + 3)),
        causal(launch.ints[0]),
        scale(launch.reals[0]),
        heads(q.shape[q.ndim - 3]),
        groups(k.shape[q.ndim - 3]),
        queries(q.shape[q.ndim - 2]),
        keys(k.shape[q.ndim - 2]),
        width(q.shape[q.ndim - 1]),
        value_width(v.shape[q.ndim - 1]) {
    outer = 1;
    for (int d = 0; d < q.ndim - 3; ++d) outer *= q.shape[d];
    shared = groups ? heads / groups : 0;
  }

  int64_t tasks() const { return outer * groups; }   // each has keys and values that no other one has
  int64_t rows() const { return shared * queries; }  // of a task
  bool empty() const { return tasks() * rows() == 0; }
  bool unseen() const { return empty() || keys == 0; }  // there are no scores
  int64_t all_heads() const { return tasks() * shared; }
  int64_t all_rows() const { return tasks() * rows(); }
  int64_t all_scores() const { return all_heads() * visible_scores(); }  // that are visible
  bool adds_mask() const { return mask.data && mask.dtype != DType::b8; }
  int64_t seen_keys() const { return causal ? std::min(keys, queries) : keys; }  // that any query sees
  int64_t visible(int64_t l) const { return causal ? std::min(keys, l + 1) : keys; }
  // The keys that the tile of query l computes products with.
  int64_t limit(int64_t l) const { return causal ? std::min(seen_keys(), (l / kCausalRows + 1) * kCausalRows) : keys; }
  // The sums of visible(l) and limit(l) over the queries of a head.
  int64_t visible_scores() const {
    if (!causal) return queries * keys;
    const int64_t n = seen_keys();
    return n * (n + 1) / 2 + (queries - n) * keys;
  }
  int64_t computed_scores() const {
    int64_t n = 0;
    for (int64_t l = 0; l < queries; ++l) n += limit(l);
    return n;
  }
  // Returns the address of element 0 of a row of an operand.
  char* row(const View& of, int64_t task, int64_t r) const {
    return at(of, task / groups, task % groups * shared + r / queries, r % queries);
  }
  char* key(const View& of, int64_t task, int64_t j) const { return at(of, task / groups, task % groups, j); }

 private:
  static char* at(const View& of, int64_t outer, int64_t head, int64_t row) {
    char* p = of.data + head * of.stride[of.ndim - 3] + row * of.stride[of.ndim - 2];
    for (int d = of.ndim - 4; d >= 0; --d) p += outer % of.shape[d] * of.stride[d], outer /= of.shape[d];
    return p;
  }
};

struct ForwardAttention : Attention {
  explicit ForwardAttention(const Launch& launch) : Attention(launch, launch.out(), 0) {}
};
struct BackwardAttention : Attention {
  const View &g, &gq, &gk, &gv;
  explicit BackwardAttention(const Launch& launch)
      : Attention(launch, launch.in(1), 2), g(launch.in(0)), gq(launch.out(0)), gk(launch.out(1)), gv(launch.out(2)) {}
};

struct TangentAttention : Attention {
  const View &tq, &tk, &tv, &tm;
  explicit TangentAttention(const Launch& launch)
      : Attention(launch, launch.out(), 0), tq(launch.in(4)), tk(launch.in(5)), tv(launch.in(6)), tm(launch.in(7)) {}
  bool moves_scores() const { return tq.data || tk.data || tm.data; }
  bool moves() const { return moves_scores() || tv.data; }
  int64_t score_terms() const { return (tq.data != nullptr) + (tk.data != nullptr) + (tm.data != nullptr); }
};

// Each backend defines the following functions.
bool fits_attention(int64_t queries, int64_t keys, int64_t width, int64_t value_width);  // false if its kernels have no room
void run_attention(const Launch& launch);
void run_attention_pullback(const Launch& launch);
void run_attention_tangent(const Launch& launch);
void executed_attention(const Launch& launch, Counts& work);
void executed_attention_pullback(const Launch& launch, Counts& work);
void executed_attention_tangent(const Launch& launch, Counts& work);

}  // namespace pb::kernels
