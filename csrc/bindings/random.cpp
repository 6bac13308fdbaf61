// Binds the change of a random state. `state` is a uint64 array [seed, serial of the call].
#include "families/random.h"

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

// advance_state(state, offset) changes the state in place: `offset` calls further on.
PyObject* call_advance_state(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"random_state", kernels::random_state, kernels::random_cost<0, 0, 0>};
  expect_count(count, 2);
  const View state = view_or_refuse(args[0]);
  if (state.dtype != DType::u64 || state.size() != 2 || !state.contiguous()) throw Refused{"not a state [seed, serial]"};
  View views[2] = {state, state};
  run({&kernel, 1, 1, views, {to_int(args[1])}, {}, nullptr});
  Py_RETURN_NONE;
}

}  // namespace

void bind_random(PyObject* module) { define(module, "advance_state", call_advance_state, nullptr); }

}  // namespace pb
