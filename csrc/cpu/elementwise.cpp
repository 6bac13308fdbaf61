// The table of elementwise ops. Each op has a loop for each of its compute types.
#include "families/elementwise.h"

#include "cpu/map.h"

namespace pb::kernels {
namespace {

// Adds an entry to the table. The entry lives as long as the program.
struct Add {
  std::vector<const Elementwise*>& table;

  template <class R> void operator()(R entry, const char* name) const {
    static cpu::ElementwiseKernel op{elementwise_of(entry, name, cpu::map), {}};
    set<R, float>(op), set<R, double>(op), set<R, int64_t>(op), set<R, uint64_t>(op), set<R, bool>(op);
    table.push_back(&op);
  }
  template <class R, class C> static void set(cpu::ElementwiseKernel& op) {
    if constexpr (R::takes(compute_of<C>))
      op.loops[int(compute_of<C>)] = cpu::loop<typename R::Functor, C, typename R::template Result<C>, R::kArity>;
  }
};

}  // namespace

const std::vector<const Elementwise*>& elementwise() {
  static const std::vector<const Elementwise*> table = [] {
    std::vector<const Elementwise*> entries;
    each_unary(Add{entries}), each_unary_pullback(Add{entries});
    each_binary(Add{entries}), each_binary_pullback(Add{entries});
    return entries;
  }();
  return table;
}

}  // namespace pb::kernels
