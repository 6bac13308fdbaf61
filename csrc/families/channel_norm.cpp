// The kernels of norms of channels, and their costs: those of layer norm on their rows.
#include "families/channel_norm.h"

#include "families/executed.h"
#include "launch/signature.h"

namespace pb::kernels {
namespace {

Walks walks_of_formula(const ChannelRows& r) { return {r.rows(), r.rows() * r.length(), r.rows() * (r.length() - 1), 0}; }

void forward_cost(const Launch& launch, Cost& cost) {
  const ChannelRows r(launch.in(), launch.ints[2]);
  if (launch.in().size()) cost.add(work_of_layer_norm(launch.ints[0], launch.ints[1], walks_of_formula(r)));
}

// For each channel, a running mean takes two products and their sum, a running variance a third product. The share of one batch
// among all takes a division and a difference.
void batch_cost(const Launch& launch, Cost& cost) {
  forward_cost(launch, cost);
  cost.Counts::add(work_of_movement(launch, 1));
  cost.integer_ops += launch.out(3).size();
}

void backward_cost(const Launch& launch, Cost& cost) {
  const ChannelRows r(launch.in(), launch.ints[1]);
  if (launch.in().size() == 0) return;
  cost.add(work_of_layer_norm_pullback(launch.ints[0], walks_of_formula(r)));
  cost.adds -= 2 * r.channels;  // a sum of n terms takes n - 1 additions
}

}  // namespace

Counts work_of_movement(const Launch& launch, int64_t threads) {
  const int64_t means = launch.out(1).size(), variances = launch.out(2).size();
  Counts work;
  work.adds = means + variances, work.multiplies = 2 * means + 3 * variances;
  if (launch.ints[3] && means + variances) work.adds += threads, work.special += threads;
  return work;
}

const Kernel channel_norm{"channel_norm", run_channel_norm, forward_cost, executed_channel_norm};
const Kernel batch_norm{"batch_norm", run_batch_norm, batch_cost, executed_batch_norm};
const Kernel channel_norm_pullback{"channel_norm_pullback", run_channel_norm_pullback, backward_cost,
                                   executed_channel_norm_pullback};

static const char* refuses_groups(const Launch& launch) {
  const int64_t groups = launch.ints[launch.outputs == 1 ? 2 : 1], channels = launch.in().shape[1];
  return groups < 0 || (groups && channels % groups) ? "groups that do not divide the channels" : nullptr;
}

static const KernelRows table{
    {&channel_norm, "(x[N, C, S], weight[C]?, bias[C]?, real eps, int groups) -> y[N, C, S]", 2, refuses_groups},
    {&channel_norm_pullback, "(g[N, C, S], x[N, C, S], weight[C]?, real eps, int groups) -> gx[N, C, S], gweight[C], gbias[C]",
     4, refuses_groups},
};

}  // namespace pb::kernels
