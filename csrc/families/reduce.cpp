// Sums that are part of the kernels of other families.
#include "families/reduce.h"

#include <string>

namespace pb::kernels {

void sum_over(const View& out, const View& x, int64_t axes) {
  static const Reduction& sum =
      **std::find_if(reductions().begin(), reductions().end(), [](auto* op) { return op->kernel.name == std::string("sum"); });
  View views[] = {out, x};
  sum.kernel.run({&sum.kernel, 1, 1, views, {axes}, {}, &sum});
}

}  // namespace pb::kernels
