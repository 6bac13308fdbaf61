// Adds the entries of the table of elementwise ops, each with its kernels.
#pragma once
#include "cuda/map.cuh"
#include "families/elementwise.h"

namespace pb::cuda {

// Adds an entry to the table. The entry lives as long as the program.
struct AddElementwise {
  std::vector<const kernels::Elementwise*>& table;

  template <class R> void operator()(R entry, const char* name) const {
    static const ElementwiseKernel op = [&] {
      ElementwiseKernel kernel{kernels::elementwise_of(entry, name, run_mapped), {}};
      set<R, float>(kernel), set<R, double>(kernel), set<R, int64_t>(kernel), set<R, uint64_t>(kernel), set<R, bool>(kernel);
      return kernel;
    }();
    table.push_back(&op);
  }
  template <class R, class C> static void set(ElementwiseKernel& op) {
    if constexpr (R::takes(compute_of<C>))
      op.kernels[int(compute_of<C>)] =
          map<typename R::Functor, C, typename R::template Result<C>, R::kArity, R::kConditionCount>;
  }
};

}  // namespace pb::cuda

// These take longest to compile, so each is instantiated in a source that CMake generates.
namespace pb::kernels {

extern template void each_unary<cuda::AddElementwise>(cuda::AddElementwise&&);
extern template void each_unary_pullback<cuda::AddElementwise>(cuda::AddElementwise&&);
extern template void each_binary<cuda::AddElementwise>(cuda::AddElementwise&&);
extern template void each_binary_pullback<cuda::AddElementwise>(cuda::AddElementwise&&);

}  // namespace pb::kernels
