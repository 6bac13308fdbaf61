// What a scatter costs, and what it begins with.
#include "kernels/scatter.h"

#include <cstring>

#include "math/convert.h"
#include "math/scalar.h"

namespace pb::kernels {

void scatter_cost(const Launch& launch, Cost& cost) {
  cost.add(static_cast<const Scatter*>(launch.table)->counts, launch.in(launch.inputs - 1).size());
}

uint64_t identity_of(Identity identity, DType dtype, DType stored) {
  uint64_t bits = 0;
  if (identity == Identity::zero) return bits;
  visit(dtype, [&](auto t) {
    using A = acc_t<typename decltype(t)::type>;
    const A number = identity == Identity::lowest ? m::kLowest<A> : m::kHighest<A>;
    visit(stored, [&](auto s) {
      const auto value = m::narrow<typename decltype(s)::type>(number);
      std::memcpy(&bits, &value, sizeof value);
    });
  });
  return bits;
}

}  // namespace pb::kernels
