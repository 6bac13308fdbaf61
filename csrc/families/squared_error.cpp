// The kernels of the squared error, and their costs.
#include "families/squared_error.h"

#include <algorithm>

#include "families/executed.h"
#include "launch/signature.h"

namespace pb::kernels {
namespace {

// A difference for each element, which is squared and added for the loss, and multiplied by twice g for the gradient. The last
// numbers are g times its share, which a mean divides, and twice that.
template <bool kLoss, bool kGradient> void cost_of(const Launch& launch, Cost& cost) {
  const int64_t n = launch.in(kGradient).size();
  cost.adds = n + (kLoss ? std::max<int64_t>(0, n - 1) : 0);
  cost.multiplies = n * (kLoss + kGradient) + (kGradient ? 2 : 0);
  cost.special = (kLoss && is_divided(launch, n)) + (kGradient && launch.ints[0]);
}
template <bool kLoss, bool kGradient> void executed_of(const Launch& launch, Counts& work) {
  executed_squared_error(launch, kLoss, kGradient, work);
}
template <bool kLoss, bool kGradient> constexpr Kernel kernel_of(const char* name, void (*run)(const Launch&)) {
  return {name, run, cost_of<kLoss, kGradient>, executed_of<kLoss, kGradient>};
}

}  // namespace

const Kernel squared_error = kernel_of<true, false>("squared_error", run_squared_error);
const Kernel squared_error_pullback = kernel_of<false, true>("squared_error_pullback", run_squared_error_pullback);
const Kernel squared_error_with_gradient =
    kernel_of<true, true>("squared_error_with_gradient", run_squared_error_with_gradient);

static const KernelRows table{
    {&squared_error, "(x[...], target[...], flag mean) -> loss[]", 3},
    {&squared_error_pullback, "(g[], x[...], target[...], flag mean) -> gx[...]", 2},
};

}  // namespace pb::kernels
