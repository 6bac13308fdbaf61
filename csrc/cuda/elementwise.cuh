// Rows of the table of elementwise ops, each with its kernels.
#pragma once
#include "cuda/map.cuh"
#include "families/elementwise.h"

namespace pb::cuda {

// Adds rows that live as long as the program.
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

// Each in a file of its own: they are what takes longest to compile.
using Rows = std::vector<const kernels::Elementwise*>;
void add_unary(Rows& rows);
void add_unary_pullback(Rows& rows);
void add_binary(Rows& rows);
void add_binary_pullback(Rows& rows);

}  // namespace pb::cuda
