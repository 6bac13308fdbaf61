// The updates of SGD.
#include "cuda/update.cuh"

namespace pb::kernels {

const Update& choose_sgd(const Setting* hyper) { return choose_sgd(hyper, cuda::MakeUpdate{}); }

}  // namespace pb::kernels
