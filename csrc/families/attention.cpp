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
// Returns the bytes of the mask at the scores that are visible.
int64_t mask_bytes(const Attention& a) {
  if (!a.mask.data) return 0;
  if (!a.causal) return a.mask.distinct_bytes();
  View seen = a.mask;
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
      a.q.distinct_bytes() + distinct_bytes(a.k, a.seen_keys()) + distinct_bytes(a.v, a.seen_keys()) + mask_bytes(a);
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
  cost.bytes_read = a.g.distinct_bytes() + a.q.distinct_bytes() + distinct_bytes(a.k, a.seen_keys()) + mask_bytes(a);
  if (to_scores) cost.bytes_read += a.y.distinct_bytes() + distinct_bytes(a.v, a.seen_keys());
}

}  // namespace

const Kernel attention{"attention", run_attention, forward_cost, executed_attention};
const Kernel attention_pullback{"attention_pullback", run_attention_pullback, backward_cost, executed_attention_pullback};

}  // namespace pb::kernels
