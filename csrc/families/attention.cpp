// The kernels of attention, and their costs.
#include "families/attention.h"

namespace pb::kernels {
namespace {

void add_products(int64_t fmas, Cost& cost) { cost.fmas += fmas, cost.matmul_flops += 2 * fmas; }

int64_t distinct_bytes(const View& v, int64_t rows) {
  View seen = v;
  seen.shape[v.ndim - 2] = rows;
  return seen.distinct_bytes();
}
// Returns the bytes of the mask, or of its tangent, at the scores that are visible.
int64_t mask_bytes(const Attention& a, const View& mask) {
  if (!mask.data) return 0;
  if (!a.causal) return mask.distinct_bytes();
  View seen = mask;
  const int keys = seen.ndim - 1, queries = seen.ndim - 2;
  if (seen.stride[keys] != 0 && seen.stride[queries] != 0) {
    seen.shape[queries] = 1, seen.shape[keys] = 1;
    return seen.distinct_bytes() * a.visible_scores();
  }
  seen.shape[keys] = a.seen_keys();
  return seen.distinct_bytes();
}

// Each row has an exponential for each visible score, a sum of them, a division, and products with the scale and with its result.
void forward_cost(const Launch& launch, Cost& cost) {
  const ForwardAttention a(launch);
  cost.bytes_written = a.y.bytes();
  if (a.unseen()) return;
  const int64_t rows = a.all_rows(), scores = a.all_scores();
  add_products(scores * (a.width + a.value_width), cost);
  cost.multiplies += rows * (a.width + a.value_width);
  cost.adds += scores + scores - rows;
  if (a.adds_mask()) cost.adds += scores;
  cost.special += scores + rows;
  cost.bytes_read =
      a.q.distinct_bytes() + distinct_bytes(a.k, a.seen_keys()) + distinct_bytes(a.v, a.seen_keys()) + mask_bytes(a, a.mask);
}

// The formula has the weights and the sums of the forward pass. The kernels compute them again, which is executed work.
void backward_cost(const Launch& launch, Cost& cost) {
  const BackwardAttention a(launch);
  for (int k = 0; k < launch.outputs; ++k) cost.bytes_written += launch.out(k).data ? launch.out(k).bytes() : 0;
  if (a.unseen()) return;
  const int64_t rows = a.all_rows(), scores = a.all_scores();
  const bool to_scores = a.gq.data || a.gk.data;
  if (to_scores) {
    add_products(scores * a.value_width, cost);
    cost.multiplies += scores + rows * a.value_width;
    cost.adds += scores + rows * (a.value_width - 1);
  }
  if (a.gq.data) add_products(scores * a.width, cost), cost.multiplies += rows * a.width;
  if (a.gk.data) add_products(scores * a.width, cost), cost.multiplies += rows * a.width;
  if (a.gv.data) add_products(scores * a.value_width, cost);
  cost.multiplies += rows * a.value_width;
  cost.bytes_read = a.g.distinct_bytes() + a.q.distinct_bytes() + distinct_bytes(a.k, a.seen_keys()) + mask_bytes(a, a.mask);
  if (to_scores) cost.bytes_read += a.y.distinct_bytes() + distinct_bytes(a.v, a.seen_keys());
}

// As in the backward pass, the weights and their sums count nothing.
void tangent_cost(const Launch& launch, Cost& cost) {
  const TangentAttention a(launch);
  cost.bytes_written = a.y.bytes();
  if (a.unseen() || !a.moves()) return;
  const int64_t rows = a.all_rows(), scores = a.all_scores(), seen = a.seen_keys();
  cost.bytes_read = a.q.distinct_bytes() + distinct_bytes(a.k, seen) + mask_bytes(a, a.mask);
  cost.multiplies += rows * a.value_width;
  if (a.tq.data) {
    add_products(scores * a.width, cost), cost.multiplies += rows * a.width;
    cost.bytes_read += a.tq.distinct_bytes();
  }
  if (a.tk.data) {
    add_products(scores * a.width, cost), cost.multiplies += rows * a.width;
    cost.bytes_read += distinct_bytes(a.tk, seen);
  }
  if (a.moves_scores()) {  // the weighted mean, what it is subtracted from, and the product with the values
    add_products(scores * a.value_width, cost);
    cost.adds += scores * (a.score_terms() - 1) + scores - rows + scores;
    cost.multiplies += scores + rows + scores;
    cost.bytes_read += distinct_bytes(a.v, seen) + mask_bytes(a, a.tm);
  }
  if (a.tv.data) {
    add_products(scores * a.value_width, cost);
    if (a.moves_scores()) cost.adds += rows * a.value_width;
    cost.bytes_read += distinct_bytes(a.tv, seen);
  }
}

}  // namespace

const Kernel attention{"attention", run_attention, forward_cost, executed_attention};
const Kernel attention_pullback{"attention_pullback", run_attention_pullback, backward_cost, executed_attention_pullback};
const Kernel attention_tangent{"attention_tangent", run_attention_tangent, tangent_cost, executed_attention_tangent};

}  // namespace pb::kernels
