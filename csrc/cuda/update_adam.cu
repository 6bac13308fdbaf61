// The updates of Adam and AdamW.
#include "cuda/update.cuh"

namespace pb::kernels {

const Update& choose_adam(const Setting* hyper) { return choose_adam(hyper, cuda::MakeUpdate{}); }

}  // namespace pb::kernels
