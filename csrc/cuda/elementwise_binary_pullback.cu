// The pullbacks of the elementwise ops of two operands.
#include "cuda/elementwise.cuh"

namespace pb::cuda {

void add_binary_pullback(Rows& rows) { kernels::each_binary_pullback(AddMapped{rows}); }

}  // namespace pb::cuda
