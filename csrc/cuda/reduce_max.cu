// The kernels of maxima.
#include "cuda/reduce.cuh"

namespace pb::cuda {

template <> void set_kernels<max_reduce>(Reduced& op) {
  set_numbers<max_reduce>(op);
  set_kernel<max_reduce, bool>(op);
}

}  // namespace pb::cuda
