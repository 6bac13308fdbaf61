// Binds the ops that read and write at indices: take, take_along_axis, their pullbacks, index_<how>, nonzero.
#include "bindings/tables.h"
#include "bindings/indexed.h"
#include "families/scatter.h"

namespace pb {
namespace {

using kernels::Negative;

// Writes to `shape` the shape of x with the axis replaced by the shape of the indices. Returns the number of axes.
int taken_shape(int ndim, const int64_t* x, int axis, const View& indices, int64_t* shape) {
  if (ndim - 1 + indices.ndim > kMaxDims) throw Refused{"more than 8 axes"};
  int n = 0;
  for (int d = 0; d < axis; ++d) shape[n++] = x[d];
  for (int d = 0; d < indices.ndim; ++d) shape[n++] = indices.shape[d];
  for (int d = axis + 1; d < ndim; ++d) shape[n++] = x[d];
  return n;
}

void expect_shape(const View& v, int ndim, const int64_t* shape, const char* why) {
  bool same = v.ndim == ndim;
  for (int d = 0; same && d < ndim; ++d) same = v.shape[d] == shape[d];
  if (!same) throw Refused{why};
}

// take(x, indices, axis, from_end). from_end: negative indices count from the end; otherwise they are out of range.
PyObject* call_take(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"take", kernels::take, kernels::take_cost};
  expect_count(count, 4);
  View views[3];
  views[1] = view_or_refuse(args[0]);
  views[2] = indices_or_refuse(args[1]);
  const int axis = axis_or_refuse(args[2], views[1].ndim);
  int64_t shape[kMaxDims];
  const int ndim = taken_shape(views[1].ndim, views[1].shape, axis, views[2], shape);
  Result result(views[1].dtype, ndim, shape, views[0]);
  const Negative negative = to_bool(args[3]) ? Negative::from_end : Negative::refused;
  run_indexed({&kernel, 1, 2, views, {axis, int64_t(negative)}, {}, nullptr}, views[0].size());
  return result.hand_out();
}

// Broadcasts a and b to the same lengths along all axes except `axis`.
void align(View& a, View& b, int axis) {
  if (a.ndim != b.ndim) throw Refused{"different numbers of axes"};
  for (int d = 0; d < a.ndim; ++d) {
    if (d == axis || a.shape[d] == b.shape[d]) continue;
    View& short_one = a.shape[d] == 1 ? a : b;
    if (short_one.shape[d] != 1) throw Refused{"shapes do not broadcast"};
    short_one.shape[d] = a.shape[d] == 1 ? b.shape[d] : a.shape[d];
    short_one.stride[d] = 0;
  }
}

// take_along_axis(x, indices, axis)
PyObject* call_take_along_axis(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"take_along_axis", kernels::take_along_axis, kernels::take_along_axis_cost};
  expect_count(count, 3);
  View views[3];
  views[1] = view_or_refuse(args[0]);
  views[2] = indices_or_refuse(args[1]);
  const int axis = axis_or_refuse(args[2], views[1].ndim);
  align(views[1], views[2], axis);
  Result result(views[1].dtype, views[2].ndim, views[2].shape, views[0]);
  run_indexed({&kernel, 1, 2, views, {axis}, {}, nullptr}, views[0].size());
  return result.hand_out();
}

// index_<how>(x, updates, indices, axis)
PyObject* call_index_write(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  View views[4];
  views[1] = view_or_refuse(args[0]);
  views[2] = indices_or_refuse(args[2]);
  views[3] = view_or_refuse(args[1]);
  const int axis = axis_or_refuse(args[3], views[1].ndim);
  int64_t shape[kMaxDims];
  const int ndim = taken_shape(views[1].ndim, views[1].shape, axis, views[2], shape);
  expect_shape(views[3], ndim, shape, "updates of another shape than what is written");
  if (views[3].dtype != views[1].dtype) throw Refused{"arrays of different dtypes"};
  Result result(views[1].dtype, views[1].ndim, views[1].shape, views[0]);
  run_indexed({&static_cast<const kernels::Scatter*>(table)->kernel, 1, 3, views, {axis}, {}, table},
              views[0].size() + views[3].size());
  return result.hand_out();
}

// scatter_add(updates, indices, shape, axis) is the pullback of take.
PyObject* call_scatter_add(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  View views[3];
  int64_t target[kMaxDims], shape[kMaxDims];
  views[2] = view_or_refuse(args[0]);
  views[1] = indices_or_refuse(args[1]);
  const int target_ndim = to_ints(args[2], target, kMaxDims);
  const int axis = axis_or_refuse(args[3], target_ndim);
  const int ndim = taken_shape(target_ndim, target, axis, views[1], shape);
  expect_shape(views[2], ndim, shape, "updates of another shape than what is written");
  Result result(views[2].dtype, target_ndim, target, views[0]);
  run_indexed({&static_cast<const kernels::Scatter*>(table)->kernel, 1, 2, views, {axis}, {}, table},
              views[0].size() + views[2].size());
  return result.hand_out();
}

// along_axis_add(updates, indices, shape, axis) is the pullback of take_along_axis.
PyObject* call_along_axis_add(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  View views[3];
  int64_t target[kMaxDims];
  views[2] = view_or_refuse(args[0]);
  views[1] = indices_or_refuse(args[1]);
  const int ndim = to_ints(args[2], target, kMaxDims);
  const int axis = axis_or_refuse(args[3], ndim);
  expect_shape(views[1], views[2].ndim, views[2].shape, "indices of another shape than the updates");
  if (views[2].ndim != ndim) throw Refused{"different numbers of axes"};
  for (int d = 0; d < ndim; ++d)
    if (d != axis && views[2].shape[d] != target[d]) throw Refused{"updates of another shape than what is written"};
  Result result(views[2].dtype, ndim, target, views[0]);
  run_indexed({&static_cast<const kernels::Scatter*>(table)->kernel, 1, 2, views, {axis}, {}, table},
              views[0].size() + views[2].size());
  return result.hand_out();
}

// nonzero_flat(x) takes two launches, because the length of the result is known only after the first.
PyObject* call_nonzero_flat(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel counting{"nonzero_count", kernels::nonzero_count, kernels::nonzero_cost};
  static const Kernel kernel{"nonzero_flat", kernels::nonzero_flat, kernels::nonzero_cost};
  expect_count(count, 1);
  View views[3];
  const View x = view_or_refuse(args[0]);
  const int64_t size = x.size(), pieces = kernels::nonzero_pieces(size) + 1;
  views[1] = x;
  Result counts(DType::i64, 1, &pieces, views[0]);
  run_released({&counting, 1, 1, views, {}, {}, nullptr}, size);
  views[2] = views[0];
  const int64_t total = kernels::read_total(views[2]);
  views[1] = x;
  Result result(DType::i64, 1, &total, views[0]);
  run_released({&kernel, 1, 2, views, {}, {}, nullptr}, size);
  return result.hand_out();
}

}  // namespace

void bind_index(PyObject* module) {
  define(module, "take", call_take, nullptr);
  define(module, "take_along_axis", call_take_along_axis, nullptr);
  for (const kernels::Scatter* op : kernels::scatters()) {
    if (op->how == kernels::Scattering::onto) define(module, op->kernel, call_index_write, op);
    if (op->how == kernels::Scattering::into) define(module, op->kernel, call_scatter_add, op);
    if (op->how == kernels::Scattering::along) define(module, op->kernel, call_along_axis_add, op);
  }
  define(module, "nonzero_flat", call_nonzero_flat, nullptr);
}

}  // namespace pb
