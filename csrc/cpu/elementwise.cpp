// The table of elementwise ops, with a loop for each compute type.
#include "families/elementwise.h"

#include "cpu/map.h"

namespace pb::kernels {
namespace {

// Adds rows that live as long as the program.
struct Add {
  std::vector<const Elementwise*>& table;

  template <class R> void operator()(R row, const char* name) const {
    static const cpu::Looped op = [&] {
      cpu::Looped looped{entry(row, name, cpu::map), {}};
      set<R, float>(looped), set<R, double>(looped), set<R, int64_t>(looped), set<R, uint64_t>(looped), set<R, bool>(looped);
      return looped;
    }();
    table.push_back(&op);
  }
  template <class R, class C> static void set(cpu::Looped& op) {
    if constexpr (R::takes(compute_of<C>))
      op.loops[int(compute_of<C>)] = cpu::loop<typename R::Functor, C, typename R::template Result<C>, R::kArity>;
  }
};

}  // namespace

const std::vector<const Elementwise*>& elementwise() {
  static const std::vector<const Elementwise*> table = [] {
    std::vector<const Elementwise*> rows;
    each_unary(Add{rows}), each_unary_pullback(Add{rows});
    each_binary(Add{rows}), each_binary_pullback(Add{rows});
    return rows;
  }();
  return table;
}

}  // namespace pb::kernels
