// The elementwise ops of one operand.
#include "cuda/elementwise.cuh"

namespace pb::cuda {

void add_unary(Rows& rows) { kernels::each_unary(AddMapped{rows}); }

}  // namespace pb::cuda
