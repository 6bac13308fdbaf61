// The head of a classifier: the layer and the loss, one after the other, while the logits are in the cache.
#include "families/head.h"

#include "families/executed.h"

namespace pb::kernels {

void run_head(const Launch& launch) {
  const HeadParts parts(launch);
  parts.layer.kernel->run(parts.layer);
  parts.loss.kernel->run(parts.loss);
}

void executed_head(const Launch& launch, Counts& work) {
  const HeadParts parts(launch);
  Cost layer, loss;
  parts.layer.kernel->cost(parts.layer, layer), parts.loss.kernel->cost(parts.loss, loss);
  Counts of_layer = layer, of_loss = loss;
  if (parts.layer.kernel->executed) parts.layer.kernel->executed(parts.layer, of_layer);
  parts.loss.kernel->executed(parts.loss, of_loss);
  work = of_layer;
  work.add(of_loss);
}

}  // namespace pb::kernels
