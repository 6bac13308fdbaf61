// Fills in the rows of the table of scatters.
#pragma once
#include "cpu/scatter.h"
#include "math/counting.h"

namespace pb {

// What one update costs is measured by running the functor on the counting scalar.
template <class Op>
cpu::Scatter scatter(const char* name, void (*run)(const Launch&), cpu::Identity identity = cpu::Identity::zero,
                     cpu::Negative negative = cpu::Negative::from_end) {
  using cpu::scatter_loop;
  Counting::flops = Counting::special = 0;
  (void)Op()(Counting(0.5), Counting(0.25));
  return {{name, run, cpu::scatter_cost},
          {scatter_loop<Op, float>, scatter_loop<Op, double>, scatter_loop<Op, int64_t>, scatter_loop<Op, uint64_t>,
           scatter_loop<Op, bool>},
          false,
          int(Counting::flops),
          identity,
          negative};
}

// Writing moves bytes.
inline cpu::Scatter scatter_bytes(const char* name, void (*run)(const Launch&)) {
  using cpu::scatter_loop;
  return {{name, run, cpu::scatter_cost},
          {scatter_loop<cpu::Set, uint8_t>, scatter_loop<cpu::Set, uint16_t>, scatter_loop<cpu::Set, uint32_t>,
           scatter_loop<cpu::Set, uint64_t>},
          true,
          0,
          cpu::Identity::zero,
          cpu::Negative::from_end};
}

}  // namespace pb
