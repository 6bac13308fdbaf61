// The elementwise ops of two operands, and where.
#include "cuda/elementwise.cuh"

namespace pb::cuda {

void add_binary(Rows& rows) { kernels::each_binary(AddMapped{rows}); }

}  // namespace pb::cuda
