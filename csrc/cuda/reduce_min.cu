// The kernels of minima.
#include "cuda/reduce.cuh"

namespace pb::cuda {

template <> void set_kernels<min_reduce>(Reduced& op) {
  set_numbers<min_reduce>(op);
  set_kernel<min_reduce, bool>(op);
}

}  // namespace pb::cuda
