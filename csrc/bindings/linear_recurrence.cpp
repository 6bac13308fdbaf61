// Binds linear recurrences.
#include "families/linear_recurrence.h"

#include <algorithm>

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

// linear_recurrence(a, b, axis, from_end, late)
PyObject* call_linear_recurrence(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 5);
  View views[3];
  View &y = views[0], &a = views[1], &b = views[2];
  a = view_or_refuse(args[0]), b = view_or_refuse(args[1]);
  if (!is_float(b.dtype) || a.dtype != b.dtype) throw Refused{"not two arrays of one float dtype"};
  if (a.ndim != b.ndim || !std::equal(a.shape, a.shape + a.ndim, b.shape)) throw Refused{"two shapes"};
  const int axis = axis_or_refuse(args[2], b.ndim);
  Result result(b.dtype, b.ndim, b.shape, y);
  run_released({&kernels::linear_recurrence, 1, 2, views, {axis, to_bool(args[3]), to_bool(args[4])}, {}, nullptr},
               b.size() * 3);
  return result.hand_out();
}

}  // namespace

void bind_linear_recurrence(PyObject* module) {
  define(module, kernels::linear_recurrence.name, call_linear_recurrence, &kernels::linear_recurrence);
}

}  // namespace pb
