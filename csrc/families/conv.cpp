// The kernels of convolutions, and their costs.
#include "families/conv.h"

#include "families/executed.h"

namespace pb::kernels {
namespace {

// A multiply-add for each element of y, each of its channels of x and each tap. Taps in the padding count. If y is empty, the other
// operand is not read.
void add_cost(const View& y, const View& w, Cost& cost) {
  const int64_t products = y.size() * w.shape[1] * w.shape[2] * w.shape[3];
  cost.fmas = products;
  cost.matmul_flops = 2 * products;
}

void cost_of_convolution(const Launch& launch, Cost& cost) {
  add_cost(launch.out(), launch.in(1), cost);
  if (launch.inputs == 3) cost.adds = launch.out().size();
}
void cost_of_input(const Launch& launch, Cost& cost) { add_cost(launch.in(0), launch.in(1), cost); }
void cost_of_weight(const Launch& launch, Cost& cost) { add_cost(launch.in(1), launch.out(), cost); }

}  // namespace

const Kernel convolution{"convolution", run_convolution, cost_of_convolution, executed_convolution};
const Kernel convolution_input{"convolution_input", run_convolution_input, cost_of_input, executed_convolution_input};
const Kernel convolution_weight{"convolution_weight", run_convolution_weight, cost_of_weight, executed_convolution_weight};

}  // namespace pb::kernels
