// Adds the rows of the table of elementwise ops, each with its kernels.
#pragma once
#include "cuda/map.cuh"
#include "families/elementwise.h"

namespace pb::cuda {

// Adds a row to the table. The row lives as long as the program.
struct AddMapped {
  std::vector<const kernels::Elementwise*>& table;

  template <class R> void operator()(R row, const char* name) const {
    static const Mapped op = [&] {
      Mapped mapped{kernels::entry(row, name, run_mapped), {}};
      set<R, float>(mapped), set<R, double>(mapped), set<R, int64_t>(mapped), set<R, uint64_t>(mapped), set<R, bool>(mapped);
      return mapped;
    }();
    table.push_back(&op);
  }
  template <class R, class C> static void set(Mapped& op) {
    if constexpr (R::takes(compute_of<C>))
      op.kernels[int(compute_of<C>)] =
          map<typename R::Functor, C, typename R::template Result<C>, R::kArity, R::kConditionCount>;
  }
};

}  // namespace pb::cuda

// These take longest to compile, so each is instantiated in a source that CMake generates.
namespace pb::kernels {

extern template void each_unary<cuda::AddMapped>(cuda::AddMapped&&);
extern template void each_unary_pullback<cuda::AddMapped>(cuda::AddMapped&&);
extern template void each_binary<cuda::AddMapped>(cuda::AddMapped&&);
extern template void each_binary_pullback<cuda::AddMapped>(cuda::AddMapped&&);

}  // namespace pb::kernels
