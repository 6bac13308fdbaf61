// The sums of rows, compiled once for all kernels.
#include "cpu/reduce.h"

namespace pb::cpu {

template float reduce_terms<sum_reduce>(int64_t, const float*);
template double reduce_terms<sum_reduce>(int64_t, const double*);

}  // namespace pb::cpu
