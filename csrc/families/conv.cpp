// The kernels of convolutions, and their costs.
#include "families/conv.h"

#include <algorithm>
#include <numeric>

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

std::vector<InputTaps> input_taps(const ConvAxis& a) {
  const int64_t common = std::gcd(a.stride, a.dilation), step = a.stride / common;
  std::vector<InputTaps> found;
  for (int64_t r = 0; r < std::min(a.stride, a.x); ++r)
    found.push_back({(a.x - r + a.stride - 1) / a.stride, 0, step, 0, 0, -(a.dilation / common)});
  for (int64_t tap = 0; tap < std::min(a.w, step); ++tap) {
    const int64_t met = tap * a.dilation - a.padding, r = (met % a.stride + a.stride) % a.stride;  // y[0] meets x[met]
    if (r >= int64_t(found.size())) continue;
    InputTaps& taps = found[size_t(r)];
    taps.first = tap, taps.count = (a.w - tap + step - 1) / step, taps.at = (r - met) / a.stride;
  }
  return found;
}

const Kernel convolution{"convolution", run_convolution, cost_of_convolution, executed_convolution};
const Kernel convolution_input{"convolution_input", run_convolution_input, cost_of_input, executed_convolution_input};
const Kernel convolution_weight{"convolution_weight", run_convolution_weight, cost_of_weight, executed_convolution_weight};

}  // namespace pb::kernels
