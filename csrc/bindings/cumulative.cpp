// Running sums, products, maxima and minima.
#include "families/cumulative.h"

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

using kernels::Cumulative;

// Returns the dtype of sums and products: integers and bools accumulate in 64 bits, floats in their own dtype.
DType wide(DType dtype) {
  return is_float(dtype) ? dtype : dtype >= DType::u8 && dtype <= DType::u64 ? DType::u64 : DType::i64;
}

// cumulative_sum(x, axis, from_end)
PyObject* call_cumulative(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& op = *static_cast<const Cumulative*>(table);
  expect_count(count, 3);
  View views[2];
  View &out = views[0], &x = views[1];
  x = view_or_refuse(args[0]);
  const int axis = axis_or_refuse(args[1], x.ndim);
  Result result(op.wide ? wide(x.dtype) : x.dtype, x.ndim, x.shape, out);
  run_released({&op.kernel, 1, 1, views, {axis, to_bool(args[2])}, {}, table}, x.size() * 2);
  return result.hand_out();
}

}  // namespace

void bind_cumulative(PyObject* module) {
  for (const Cumulative* op : kernels::cumulatives()) define(module, op->kernel.name, call_cumulative, op);
}

}  // namespace pb
