// The kernels of lengths, their costs, and the ops of other families that they consist of.
#include "families/length.h"

#include <algorithm>
#include <string>

#include "families/elementwise.h"
#include "launch/signature.h"

namespace pb::kernels {
namespace {

const Elementwise& elementwise_op(const std::string& name) {
  return **std::find_if(elementwise().begin(), elementwise().end(), [&](auto* op) { return op->kernel.name == name; });
}

void length_cost(const Launch& launch, Cost& cost) {
  const int64_t n = launch.in().size(), results = launch.out().size();
  cost.multiplies = n, cost.adds = std::max<int64_t>(0, n - results), cost.special = results;
}
void length_pullback_cost(const Launch& launch, Cost& cost) {
  cost.multiplies = launch.out().size(), cost.special = launch.in(2).size();
}

}  // namespace

void sum_squares(const View& sums, const View& squares, const View& x, int64_t mask) {
  static const Elementwise& square = elementwise_op("square");
  View views[] = {squares, x};
  square.kernel.run({&square.kernel, 1, 1, views, {}, {}, &square});
  sum_over(sums, squares, mask);
}

void multiply(const View& out, const View& factor, const View& x) {
  static const Elementwise& product = elementwise_op("multiply");
  View views[] = {out, factor, x};
  product.kernel.run({&product.kernel, 1, 2, views, {}, {}, &product});
}

const Kernel length{"length", run_length, length_cost, executed_length};
const Kernel length_pullback{"length_pullback", run_length_pullback, length_pullback_cost, executed_length_pullback};

static const KernelRows table{
    {&length, "(x[...], axes a) -> y[.../a]", 1},
    {&length_pullback, "(g[.../a], x[...], y[.../a]) -> gx[...]", 1},
};

}  // namespace pb::kernels
