// The work that the kernels of attention do on a GPU.
#include "cuda/attention.h"
#include "cuda/block.h"
#include "families/attention.h"

namespace pb::kernels {
namespace {

// Additions of sum_of_warp(): each lane combines its eight terms of each block, those of the other lanes, and the blocks.
int64_t adds_of_warp(int64_t n) { return cuda::kWarp * (order_blocks(n) * (7 + 5) + order_blocks(n) - 1); }

template <int kRows> int64_t padded_rows(int64_t l) {
  return l % kRows == 0 ? kRows : 0;  // a tile computes all of its rows with the first one
}

// The work of weigh(): scores, exponentials and their sums, for all queries of a head.
template <int kRows> Counts work_of_weights(const Attention& a) {
  Counts work;
  for (int64_t l = 0; l < a.queries; ++l) {
    work.fmas += padded_rows<kRows>(l) * a.limit(l) * a.width;
    work.adds += adds_of_warp(a.visible(l));
  }
  const int64_t scores = a.visible_scores();
  work.adds += scores * (a.adds_mask() ? 2 : 1);
  work.special += scores + a.queries, work.multiplies += a.queries * a.width;
  return work;
}

// Products of the weights of a head with keys or values, and with one factor per result.
Counts work_of_results(const Attention& a, int64_t width) {
  Counts work;
  for (int64_t l = 0; l < a.queries; ++l) work.fmas += a.limit(l) * width, work.adds += (order_blocks(a.limit(l)) - 1) * width;
  work.multiplies += a.queries * width;
  return work;
}

template <class C> Counts work_of_keys(const BackwardAttention& a) {
  const int64_t scores = a.visible_scores(), tiles = (a.keys + cuda::kKeySide<C> - 1) / cuda::kKeySide<C>;
  Counts work;
  work.fmas += scores * a.width + a.computed_scores() * ((a.gk.data ? a.width : 0) + (a.gv.data ? a.value_width : 0));
  work.adds += scores * (a.adds_mask() ? 2 : 1), work.special += scores;
  work.multiplies += tiles * a.queries * (a.width + a.value_width);
  if (a.gk.data) work.fmas += scores * a.value_width, work.adds += scores, work.multiplies += scores;
  return work;
}

template <class C> void backward(const BackwardAttention& a, Counts& work) {
  const int64_t heads = a.all_heads();
  Counts each = work_of_weights<cuda::kQueryRows<C>>(a);
  if (a.gq.data || a.gk.data) {
    each.multiplies += 2 * a.queries * a.value_width;
    each.adds += a.queries * adds_of_warp(a.value_width);
  }
  if (a.gq.data) {
    for (int64_t l = 0; l < a.queries; ++l) each.fmas += padded_rows<cuda::kQueryRows<C>>(l) * a.limit(l) * a.value_width;
    each.adds += a.visible_scores(), each.multiplies += a.visible_scores();
    each.add(work_of_results(a, a.width));
  }
  if (a.gk.data || a.gv.data) each.add(work_of_keys<C>(a));
  work = {};
  work.add(each, heads);
  const int64_t widths = (a.gk.data ? a.width : 0) + (a.gv.data ? a.value_width : 0);
  work.adds += a.tasks() * (order_blocks(a.rows()) - 1) * a.keys * widths;
}

template <class C> void tangent(const TangentAttention& a, Counts& work) {
  constexpr int kRows = cuda::kTangentRows<C>;
  const int64_t scores = a.visible_scores();
  const bool moves = a.moves_scores();
  Counts each = work_of_weights<kRows>(a);
  for (int64_t l = 0; l < a.queries; ++l) {
    each.fmas += padded_rows<kRows>(l) * a.limit(l) * a.width * ((a.tq.data != nullptr) + (a.tk.data != nullptr));
    if (moves) each.adds += adds_of_warp(a.visible(l));
  }
  if (a.tq.data) each.multiplies += a.queries * a.width;
  if (moves) {
    each.adds += scores * a.score_terms(), each.multiplies += 2 * scores + a.queries * cuda::kWarp;
    each.add(work_of_results(a, a.value_width));
  }
  if (a.tv.data) each.add(work_of_results(a, a.value_width));
  if (moves && a.tv.data) each.adds += a.queries * a.value_width, each.multiplies -= a.queries * a.value_width;
  work = {};
  work.add(each, a.all_heads());
}

}  // namespace

void executed_attention(const Launch& launch, Counts& work) {
  const ForwardAttention a(launch);
  if (a.unseen()) return;
  work = {};
  Counts each =
      a.q.dtype == DType::f64 ? work_of_weights<cuda::kQueryRows<double>>(a) : work_of_weights<cuda::kQueryRows<float>>(a);
  each.add(work_of_results(a, a.value_width));
  work.add(each, a.all_heads());
}

void executed_attention_pullback(const Launch& launch, Counts& work) {
  const BackwardAttention a(launch);
  if (a.unseen()) return;
  if (a.q.dtype == DType::f64) backward<double>(a, work);
  else backward<float>(a, work);
}

void executed_attention_tangent(const Launch& launch, Counts& work) {
  const TangentAttention a(launch);
  if (a.unseen() || !a.moves()) return;
  if (a.q.dtype == DType::f64) tangent<double>(a, work);
  else tangent<float>(a, work);
}

}  // namespace pb::kernels
