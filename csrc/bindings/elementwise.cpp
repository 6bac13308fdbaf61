// Binds the elementwise ops: the rows of unary.def and binary.def, and `where`.
#include "families/elementwise.h"

#include <cstring>

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

using kernels::Elementwise;
using kernels::kMaxArity;

// The views of a call's operands, and the values of the Python numbers among them, which the views point at.
struct Operands {
  View views[kMaxArity + 1];
  double reals[kMaxArity];
  int64_t ints[kMaxArity];
  bool flags[kMaxArity];
};

// Converts a Python number, the argument k, to the dtype of the arrays, which a number never widens. Throws Refused if it does not
// fit.
void take_number(PyObject* number, DType dtype, int k, Operands& args) {
  View& v = args.views[k + 1];
  v.ndim = 0;
  v.number = true;
  const Compute compute = compute_type(dtype);
  v.dtype = storage_of(compute);
  if (PyBool_Check(number) && dtype == DType::b8) {
    args.flags[k] = number == Py_True;
    v.data = reinterpret_cast<char*>(&args.flags[k]);
  } else if (is_float(dtype) && (PyFloat_Check(number) || PyLong_Check(number))) {
    args.reals[k] = to_real(number);
    if (compute == Compute::f32) {
      const float narrow = dtype == DType::f32   ? float(args.reals[k])
                           : dtype == DType::f16 ? float(float16(float(args.reals[k])))
                                                 : float(bfloat16(float(args.reals[k])));
      std::memcpy(&args.reals[k], &narrow, sizeof narrow);
    }
    v.data = reinterpret_cast<char*>(&args.reals[k]);
  } else if (PyLong_Check(number) && !PyBool_Check(number) && dtype >= DType::i8 && dtype <= DType::i64) {
    int overflow;
    args.ints[k] = PyLong_AsLongLongAndOverflow(number, &overflow);
    const int bits = 8 * item_size(dtype);
    const int64_t most = bits == 64 ? INT64_MAX : (int64_t(1) << (bits - 1)) - 1;
    if (overflow || args.ints[k] > most || args.ints[k] < -most - 1) throw Refused{"integer out of the dtype's range"};
    v.data = reinterpret_cast<char*>(&args.ints[k]);
  } else {
    throw Refused{"a number that does not fit the dtype of the array"};
  }
}

PyObject* call_elementwise(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& op = *static_cast<const Elementwise*>(table);
  // The pullback of an op of one input takes (g, x, y), but it reads only one of x and y. The caller may pass (g, that one).
  const bool short_form = count == 2 && op.arity == 3 && op.conditions == 0;
  if (count != op.arity && !short_form) throw Refused{"wrong number of arguments"};
  Operands operands;
  View* views = operands.views;
  PyObject* given[kMaxArity];
  bool tensors = false;  // an argument is a tensor, so the result is one
  int lead = -1;         // the first array that is not a condition: it sets the dtype
  for (int k = 0; k < op.arity; ++k) {
    given[k] = unwrap(args[short_form && k == 2 ? 1 : k], tensors);
    if (view_of(given[k], views[k + 1])) {
      if (lead < 0 && k >= op.conditions) lead = k;
    } else {
      views[k + 1].ndim = -1;  // marks a number, which is read below
    }
  }
  if (lead < 0) throw Refused{"no array among the arguments"};
  const DType dtype = views[lead + 1].dtype;
  const Compute compute = compute_type(dtype);
  if (!op.takes[int(compute)]) throw Refused{"no kernel for this dtype"};
  View& out = views[0];
  out.ndim = views[lead + 1].ndim;
  for (int d = 0; d < out.ndim; ++d) out.shape[d] = views[lead + 1].shape[d];
  for (int k = 0; k < op.arity; ++k) {
    View& v = views[k + 1];
    if (v.ndim < 0) {
      take_number(given[k], dtype, k, operands);
      continue;
    }
    if (v.dtype != dtype && k >= op.conditions) throw Refused{"arrays of different dtypes"};
    if (v.ndim > out.ndim) {
      for (int d = out.ndim - 1; d >= 0; --d) out.shape[d + v.ndim - out.ndim] = out.shape[d];
      for (int d = 0; d < v.ndim - out.ndim; ++d) out.shape[d] = 1;
      out.ndim = v.ndim;
    }
    const int shift = out.ndim - v.ndim;
    for (int d = 0; d < v.ndim; ++d)
      if (out.shape[d + shift] == 1) out.shape[d + shift] = v.shape[d];
  }
  for (int k = 0; k < op.arity; ++k)
    if (!broadcast_to(views[k + 1], out.ndim, out.shape)) throw Refused{"shapes do not broadcast"};
  int64_t shape[kMaxDims];
  for (int d = 0; d < out.ndim; ++d) shape[d] = out.shape[d];
  PyObject* result = new_array(op.predicate ? DType::b8 : dtype, out.ndim, shape, out);
  Launch launch{&op.kernel, 1, op.arity, views, {}, {}, &op};
  run_released(launch, out.size() * (1 + op.counts.flops() + 8 * op.counts.special));
  return tensors ? wrap(result) : result;
}

// add_into(sum, x) adds x to `sum` in place. The gradients of one tensor accumulate in this way.
PyObject* add_into(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& op = *static_cast<const Elementwise*>(table);
  expect_count(count, 2);
  View views[3] = {view_or_refuse(args[0]), view_or_refuse(args[0]), view_or_refuse(args[1])};
  if (views[2].dtype != views[0].dtype || !op.takes[int(compute_type(views[0].dtype))] || !views[0].contiguous())
    throw Refused{"dtypes differ or the sum is not contiguous"};
  if (!broadcast_to(views[2], views[0].ndim, views[0].shape)) throw Refused{"shapes differ"};
  Launch launch{&op.kernel, 1, 2, views, {}, {}, &op};
  run_released(launch, views[0].size());
  Py_RETURN_NONE;
}

}  // namespace

void bind_elementwise(PyObject* module) {
  // For the layers above: the name of each op -> (additions, multiplications, special ops) of one element.
  PyObject* counts = PyDict_New();
  if (!counts || PyModule_AddObject(module, "counts", counts) < 0) throw PythonError{};
  for (const Elementwise* op : kernels::elementwise()) {
    const char* name = op->kernel.name;
    define(module, name, call_elementwise, op);
    if (!std::strcmp(name, "add")) define(module, "add_into", add_into, op);
    PyObject* figures = Py_BuildValue("(iii)", int(op->counts.adds), int(op->counts.multiplies), int(op->counts.special));
    if (!figures || PyDict_SetItemString(counts, name, figures) < 0) throw PythonError{};
    Py_DECREF(figures);
  }
}

}  // namespace pb
