// The kernels of maxima, of bools among them: whether any is true.
#include "cuda/reduce.cuh"

namespace pb::cuda {

template <> void set_kernels<max_reduce>(Reduced& op) { set_extremes<max_reduce>(op); }
template <> void set_kernels<any_reduce>(Reduced& op) { set_truths<max_reduce>(op); }

}  // namespace pb::cuda
