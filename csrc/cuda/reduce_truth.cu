// The kernels of any and all: their partial results are bool.
#include "cuda/reduce.cuh"

namespace pb::cuda {

template <> void set_kernels<any_reduce>(Reduced& op) { set_truths<any_reduce>(op); }
template <> void set_kernels<all_reduce>(Reduced& op) { set_truths<all_reduce>(op); }

}  // namespace pb::cuda
