// The pullbacks of the elementwise ops of one operand.
#include "cuda/elementwise.cuh"

namespace pb::cuda {

void add_unary_pullback(Rows& rows) { kernels::each_unary_pullback(AddMapped{rows}); }

}  // namespace pb::cuda
