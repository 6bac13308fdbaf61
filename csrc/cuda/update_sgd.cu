// The updates of SGD, and what all updates do.
#include "cuda/update.cuh"

namespace pb::kernels {

void executed_update(const Launch& launch, Counts& work) {
  int64_t elements = 0;
  for (int t = 0; t < launch.ints[0]; ++t) {
    const View& g = launch.in(t);
    if (!g.data) continue;
    elements +=
        compute_type(g.dtype) == Compute::f32 ? cuda::whole_chunks<float>(g.size()) : cuda::whole_chunks<double>(g.size());
  }
  work = {};
  work.add(static_cast<const Update*>(launch.table)->counts, elements);
}

const Update& choose_sgd(const Setting* hyper) { return choose_sgd(hyper, cuda::MakeUpdate{}); }

}  // namespace pb::kernels
