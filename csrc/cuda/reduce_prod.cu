// The kernels of products.
#include "cuda/reduce.cuh"

namespace pb::cuda {

template <> void set_kernels<prod_reduce>(Reduced& op) { set_sums<prod_reduce>(op); }

}  // namespace pb::cuda
