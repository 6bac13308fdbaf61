// The kernels of sums, and with them means.
#include "cuda/reduce.cuh"

namespace pb::cuda {

template <> void set_kernels<sum_reduce>(Reduced& op) { set_sums<sum_reduce>(op); }

}  // namespace pb::cuda
