// Binds the reductions: the rows of reduce.def, the mean, the positions of extremes, and lengths.
#include "bindings/tables.h"
#include "bindings/result.h"
#include "families/length.h"
#include "families/reduce.h"

namespace pb {
namespace {

using kernels::Reduction;

// Writes to `shape` the shape of x without the axes of the mask, or with lengths of 1 in their place. Returns the number of axes.
int reduced_shape(const View& x, int64_t mask, bool keepdims, int64_t* shape) {
  int ndim = 0;
  for (int d = 0; d < x.ndim; ++d) {
    if (!(mask >> d & 1)) shape[ndim++] = x.shape[d];
    else if (keepdims) shape[ndim++] = 1;
  }
  return ndim;
}

int64_t to_mask(PyObject* object, int ndim) {
  int64_t axes[kMaxDims], mask = 0;
  const int named = to_ints(object, axes, kMaxDims);
  for (int k = 0; k < named; ++k) {
    if (axes[k] < 0 || axes[k] >= ndim || (mask >> axes[k] & 1)) throw Refused{"axes that are not those of x, once each"};
    mask |= int64_t(1) << axes[k];
  }
  return mask;
}

// sum(x, axes, keepdims)
PyObject* call_reduce(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& op = *static_cast<const Reduction*>(table);
  expect_count(count, 3);
  View views[2];
  View &out = views[0], &x = views[1];
  x = view_or_refuse(args[0]);
  if (!op.takes[int(kernels::read_as(op, x.dtype))]) throw Refused{"no kernel for this dtype"};
  const int64_t mask = to_mask(args[1], x.ndim);
  for (int d = 0; d < x.ndim; ++d)
    if ((mask >> d & 1) && x.shape[d] == 0 && !op.adds && !op.predicate) throw Refused{"an extreme over an empty axis"};
  int64_t shape[kMaxDims];
  const int ndim = reduced_shape(x, mask, to_bool(args[2]), shape);
  Result result(kernels::result_dtype(op, x.dtype), ndim, shape, out);
  Launch launch{&op.kernel, 1, 1, views, {mask}, {}, &op};
  run_released(launch, x.size());
  return result.hand_out();
}

// sum_pullback(g, shape of x, axes) broadcasts each cotangent to all elements that were summed. It moves no data: the result is a
// view of g.
PyObject* call_sum_pullback(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  bool tensor = false;
  PyObject* array = unwrap(args[0], tensor);
  const View g = view_or_refuse(array);
  int64_t shape[kMaxDims], stride[kMaxDims];
  const int ndim = to_ints(args[1], shape, kMaxDims);
  const int64_t mask = to_mask(args[2], ndim);
  const bool keepdims = g.ndim == ndim;
  int from = 0;
  for (int d = 0; d < ndim; ++d) {
    const bool reduced = mask >> d & 1;
    stride[d] = 0;
    if (reduced && !keepdims) continue;
    if (from == g.ndim || g.shape[from] != (reduced ? 1 : shape[d])) throw Refused{"a cotangent of another shape"};
    if (!reduced) stride[d] = g.stride[from];
    ++from;
  }
  if (from != g.ndim) throw Refused{"a cotangent of another shape"};
  PyObject* view = view_array(array, ndim, shape, stride);
  return tensor ? wrap(view) : view;
}

// argmax(x, axis, keepdims). The table is the kernel.
template <bool kSmallest> PyObject* call_arg_reduce(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  View views[2];
  View &out = views[0], &x = views[1];
  x = view_or_refuse(args[0]);
  const int axis = axis_or_refuse(args[1], x.ndim);
  if (x.shape[axis] == 0) throw Refused{"the position of an extreme in an empty axis"};
  int64_t shape[kMaxDims];
  const int ndim = reduced_shape(x, int64_t(1) << axis, to_bool(args[2]), shape);
  Result result(DType::i64, ndim, shape, out);
  Launch launch{static_cast<const Kernel*>(table), 1, 1, views, {axis, kSmallest}, {}, nullptr};
  run_released(launch, x.size());
  return result.hand_out();
}

// length(x, axes) keeps the axes, with length 1.
PyObject* call_length(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 2);
  View views[2];
  View &out = views[0], &x = views[1];
  x = view_or_refuse(args[0]);
  if (!is_float(x.dtype)) throw Refused{"not a float dtype"};
  const int64_t mask = to_mask(args[1], x.ndim);
  int64_t shape[kMaxDims];
  const int ndim = reduced_shape(x, mask, true, shape);
  Result result(x.dtype, ndim, shape, out);
  run_released({&kernels::length, 1, 1, views, {mask}, {}, nullptr}, x.size());
  return result.hand_out();
}

// length_pullback(g, x, y)
PyObject* call_length_pullback(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  View views[4];
  const View &g = views[1] = view_or_refuse(args[0]), &x = views[2] = view_or_refuse(args[1]),
             &y = views[3] = view_or_refuse(args[2]);
  bool fits = is_float(x.dtype) && g.dtype == x.dtype && y.dtype == x.dtype && g.ndim == x.ndim && y.ndim == x.ndim;
  for (int d = 0; fits && d < x.ndim; ++d) fits = g.shape[d] == y.shape[d] && (y.shape[d] == 1 || y.shape[d] == x.shape[d]);
  if (!fits) throw Refused{"not one cotangent and one length for each cell, of the dtype of x"};
  Result gx(x.dtype, x.ndim, x.shape, views[0]);
  run_released({&kernels::length_pullback, 1, 3, views, {}, {}, nullptr}, x.size());
  return gx.hand_out();
}

}  // namespace

void bind_reduce(PyObject* module) {
  for (const Reduction* op : kernels::reductions()) define(module, op->kernel.name, call_reduce, op);
  define(module, "sum_pullback", call_sum_pullback, nullptr);
  static const Kernel largest{"argmax", kernels::arg_reduce, kernels::arg_reduce_cost};
  static const Kernel smallest{"argmin", kernels::arg_reduce, kernels::arg_reduce_cost};
  define(module, "argmax", call_arg_reduce<false>, &largest);
  define(module, "argmin", call_arg_reduce<true>, &smallest);
  define(module, "length", call_length, nullptr);
  define(module, "length_pullback", call_length_pullback, nullptr);
}

}  // namespace pb
