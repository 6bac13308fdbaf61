// Binds the reductions: the rows of reduce.def, the mean, and the positions of extremes.
#include "bindings/tables.h"
#include "bindings/result.h"
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

}  // namespace

void bind_reduce(PyObject* module) {
  for (const Reduction* op : kernels::reductions()) define(module, op->kernel, call_reduce, op);
  define(module, "sum_pullback", call_sum_pullback, nullptr);
  static const Kernel largest{"argmax", kernels::arg_reduce, kernels::arg_reduce_cost};
  static const Kernel smallest{"argmin", kernels::arg_reduce, kernels::arg_reduce_cost};
  define(module, "argmax", call_arg_reduce<false>, &largest);
  define(module, "argmin", call_arg_reduce<true>, &smallest);
}

}  // namespace pb
