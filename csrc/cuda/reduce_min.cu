// The kernels of minima, of bools among them: whether all are true.
#include "cuda/reduce.cuh"

namespace pb::cuda {

template <> void set_kernels<min_reduce>(Reduced& op) { set_extremes<min_reduce>(op); }
template <> void set_kernels<all_reduce>(Reduced& op) { set_truths<min_reduce>(op); }

}  // namespace pb::cuda
