// The update kernels of tensors that are computed in double.
#include "cuda/update.cuh"

namespace pb::cuda {

UpdateRows double_updates() { return update_rows<double>(); }

}  // namespace pb::cuda
