// The update kernels of tensors that are computed in float.
#include "cuda/update.cuh"

namespace pb::cuda {

UpdateRows float_updates() { return update_rows<float>(); }

}  // namespace pb::cuda
