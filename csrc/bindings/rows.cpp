// Binds the ops that work on whole rows: softmax and its relatives, the norms, cross entropy; and the squared error.
#include "families/rows.h"
#include "families/squared_error.h"

#include "bindings/indexed.h"
#include "bindings/tables.h"

namespace pb {
namespace {

constexpr int64_t kExpWork = 4;  // the work per element of ops with exponentials, in flops

View floats_or_refuse(PyObject* object) {
  const View v = view_or_refuse(object);
  if (!is_float(v.dtype)) throw Refused{"not a float dtype"};
  return v;
}

View rows_or_refuse(PyObject* object) {
  const View v = floats_or_refuse(object);
  if (v.ndim == 0) throw Refused{"a row needs an axis"};
  return v;
}

// Returns the view of an operand, which must have the shape and dtype of x.
View like_or_refuse(PyObject* object, const View& x) {
  const View v = view_or_refuse(object);
  bool same = v.dtype == x.dtype && v.ndim == x.ndim;
  for (int d = 0; same && d < x.ndim; ++d) same = v.shape[d] == x.shape[d];
  if (!same) throw Refused{"shapes or dtypes differ"};
  return v;
}

View as_column(View v) {
  v.shape[v.ndim] = 1;
  v.stride[v.ndim++] = item_size(v.dtype);
  return v;
}

// Returns the view of an operand with one value per row of x: the shape of x without its last axis, or with a 1 in its place.
View column_or_refuse(PyObject* object, const View& x) {
  View v = view_or_refuse(object);
  if (v.ndim == x.ndim - 1) v = as_column(v);
  bool fits = v.dtype == x.dtype && v.ndim == x.ndim && v.shape[v.ndim - 1] == 1;
  for (int d = 0; fits && d < x.ndim - 1; ++d) fits = v.shape[d] == x.shape[d];
  if (!fits) throw Refused{"not one value for each row, of the same dtype"};
  return v;
}

// Returns the view of a vector, which must have the dtype of x and the length of its rows.
View vector_or_refuse(PyObject* object, const View& x) {
  const View v = view_or_refuse(object);
  if (v.dtype != x.dtype || v.ndim != 1 || v.shape[0] != x.shape[x.ndim - 1])
    throw Refused{"weight or bias is not (n,) of the same dtype"};
  return v;
}

PyObject* run_rows(const Kernel& kernel, int inputs, View* views, Result& result, double real = 0) {
  const Launch launch{&kernel, 1, inputs, views, {}, {real}, nullptr};
  run_released(launch, views[1].size() * kExpWork);
  return result.hand_out();
}

// softmax(x), log_softmax(x). The table of this and of most functions below is the kernel.
PyObject* call_softmax(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  View views[2];
  const View& x = views[1] = rows_or_refuse(args[0]);
  Result y(x.dtype, x.ndim, x.shape, views[0]);
  return run_rows(*static_cast<const Kernel*>(table), 1, views, y);
}

// softmax_pullback(g, y), log_softmax_pullback(g, y)
PyObject* call_softmax_pullback(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 2);
  View views[3];
  const View& y = views[2] = rows_or_refuse(args[1]);
  views[1] = like_or_refuse(args[0], y);
  Result gx(y.dtype, y.ndim, y.shape, views[0]);
  return run_rows(*static_cast<const Kernel*>(table), 2, views, gx);
}

// logsumexp(x), variance(x), deviation(x, factor)
template <int kReals> PyObject* call_value_of_rows(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1 + kReals);
  View views[2];
  const View& x = views[1] = rows_or_refuse(args[0]);
  if (table != &kernels::logsumexp && kernels::row_length(x) == 0) throw Refused{"an empty row has no variance"};
  Result y(x.dtype, x.ndim - 1, x.shape, views[0]);
  views[0] = as_column(views[0]);
  return run_rows(*static_cast<const Kernel*>(table), 1, views, y, kReals ? to_real(args[1]) : 0);
}

// logsumexp_pullback(g, x, y)
PyObject* call_logsumexp_pullback(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  View views[4];
  const View& x = views[2] = rows_or_refuse(args[1]);
  views[1] = column_or_refuse(args[0], x);
  views[3] = column_or_refuse(args[2], x);
  Result gx(x.dtype, x.ndim, x.shape, views[0]);
  const Launch launch{static_cast<const Kernel*>(table), 1, 3, views, {}, {}, nullptr};
  run_released(launch, x.size() * kExpWork);
  return gx.hand_out();
}

// layer_norm(x, weight or None, bias or None, eps), rms_norm(x, weight or None, eps)
template <int kAffine> PyObject* call_norm(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, kAffine + 2);
  View views[2 + kAffine];
  const View& x = views[1] = rows_or_refuse(args[0]);
  Launch launch{static_cast<const Kernel*>(table), 1, 1, views, {}, {to_real(args[kAffine + 1])}, nullptr};
  for (int k = 0; k < kAffine; ++k) {
    launch.ints[k] = args[1 + k] != Py_None;
    if (launch.ints[k]) views[1 + launch.inputs++] = vector_or_refuse(args[1 + k], x);
  }
  Result y(x.dtype, x.ndim, x.shape, views[0]);
  run_released(launch, x.size());
  return y.hand_out();
}

PyObject* hand_out_all(Result* const* results, int count) {
  PyObject* tuple = PyTuple_New(count);
  if (!tuple) throw PythonError{};
  for (int k = 0; k < count; ++k) PyTuple_SET_ITEM(tuple, k, results[k]->hand_out());
  return tuple;
}

// layer_norm_pullback(g, x, weight or None, eps) -> (gx, gweight, gbias); rms_norm_pullback -> (gx, gweight)
template <int kAffine> PyObject* call_norm_pullback(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  View views[4 + kAffine];
  View *g = &views[1 + kAffine], &x = views[2 + kAffine];
  x = rows_or_refuse(args[1]);
  *g = like_or_refuse(args[0], x);
  Launch launch{static_cast<const Kernel*>(table), 1 + kAffine, 2, views, {args[2] != Py_None}, {to_real(args[3])}, nullptr};
  if (launch.ints[0]) views[1 + kAffine + launch.inputs++] = vector_or_refuse(args[2], x);
  const int64_t* n = &x.shape[x.ndim - 1];
  Result gx(x.dtype, x.ndim, x.shape, views[0]), gweight(x.dtype, 1, n, views[1]);
  if constexpr (kAffine == 1) {
    run_released(launch, 2 * x.size());
    Result* const all[] = {&gx, &gweight};
    return hand_out_all(all, 2);
  } else {
    Result gbias(x.dtype, 1, n, views[2]);
    run_released(launch, 2 * x.size());
    Result* const all[] = {&gx, &gweight, &gbias};
    return hand_out_all(all, 3);
  }
}

View labels_or_refuse(PyObject* object, const View& logits) {
  const View labels = indices_or_refuse(object);
  if (logits.ndim != 2 || labels.ndim != 1 || labels.shape[0] != logits.shape[0])
    throw Refused{"logits and labels are not (n, classes) and (n,)"};
  return labels;
}

// Returns the view of a single number of dtype x.
View scalar_or_refuse(PyObject* object, const View& x) {
  const View v = view_or_refuse(object);
  if (v.ndim != 0 || v.dtype != x.dtype) throw Refused{"not a single number of the same dtype"};
  return v;
}

// cross_entropy(logits, labels, ignore_index, label_smoothing), and with kTotal, for one loss of all rows,
// cross_entropy_total(logits, labels, ignore_index, label_smoothing, mean)
template <bool kTotal> PyObject* call_cross_entropy(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4 + kTotal);
  View views[3];
  const View& x = views[1] = rows_or_refuse(args[0]);
  views[2] = labels_or_refuse(args[1], x);
  Result loss(x.dtype, kTotal ? 0 : 1, x.shape, views[0]);
  if (!kTotal) views[0] = as_column(views[0]);
  const Launch launch{static_cast<const Kernel*>(table),
                      1,
                      2,
                      views,
                      {to_int(args[2]), kTotal && to_bool(args[4])},
                      {to_real(args[3])},
                      nullptr};
  run_indexed(launch, x.size() * kExpWork);
  return loss.hand_out();
}

// cross_entropy_pullback(g, logits, labels, ignore_index, label_smoothing), and with kTotal
// cross_entropy_total_pullback(g, logits, labels, ignore_index, label_smoothing, mean)
template <bool kTotal> PyObject* call_cross_entropy_pullback(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 5 + kTotal);
  View views[4];
  const View& x = views[2] = rows_or_refuse(args[1]);
  views[1] = kTotal ? scalar_or_refuse(args[0], x) : column_or_refuse(args[0], x);
  views[3] = labels_or_refuse(args[2], x);
  Result gx(x.dtype, x.ndim, x.shape, views[0]);
  const Launch launch{static_cast<const Kernel*>(table),
                      1,
                      3,
                      views,
                      {to_int(args[3]), kTotal && to_bool(args[5])},
                      {to_real(args[4])},
                      nullptr};
  run_indexed(launch, x.size() * kExpWork);
  return gx.hand_out();
}

// divide_by_count(x, labels, ignore_index)
PyObject* call_divide_by_count(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"divide_by_count", kernels::divide_by_count, kernels::divide_by_count_cost};
  expect_count(count, 3);
  View views[3];
  const View &x = views[1] = view_or_refuse(args[0]), &labels = views[2] = indices_or_refuse(args[1]);
  bool fits = is_float(x.dtype) && labels.ndim == x.ndim + 1;
  for (int d = 0; fits && d < x.ndim; ++d) fits = x.shape[d] == labels.shape[d];
  if (!fits) throw Refused{"not a float for each row of labels"};
  Result result(x.dtype, x.ndim, x.shape, views[0]);
  run_released({&kernel, 1, 2, views, {to_int(args[2])}, {}, nullptr}, labels.size());
  return result.hand_out();
}

// squared_error(x, target, mean)
PyObject* call_squared_error(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  View views[3];
  const View& x = views[1] = floats_or_refuse(args[0]);
  views[2] = like_or_refuse(args[1], x);
  Result loss(x.dtype, 0, nullptr, views[0]);
  run_released({static_cast<const Kernel*>(table), 1, 2, views, {to_bool(args[2])}, {}, nullptr}, 3 * x.size());
  return loss.hand_out();
}

// squared_error_pullback(g, x, target, mean)
PyObject* call_squared_error_pullback(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  View views[4];
  const View& x = views[2] = floats_or_refuse(args[1]);
  views[1] = scalar_or_refuse(args[0], x);
  views[3] = like_or_refuse(args[2], x);
  Result gx(x.dtype, x.ndim, x.shape, views[0]);
  run_released({static_cast<const Kernel*>(table), 1, 3, views, {to_bool(args[3])}, {}, nullptr}, 2 * x.size());
  return gx.hand_out();
}

void bind(PyObject* module, const Kernel& kernel, Call call) { define(module, kernel.name, call, &kernel); }

}  // namespace

void bind_rows(PyObject* module) {
  bind(module, kernels::softmax, call_softmax);
  bind(module, kernels::log_softmax, call_softmax);
  bind(module, kernels::logsumexp, call_value_of_rows<0>);
  bind(module, kernels::variance, call_value_of_rows<0>);
  bind(module, kernels::deviation, call_value_of_rows<1>);
  bind(module, kernels::softmax_pullback, call_softmax_pullback);
  bind(module, kernels::log_softmax_pullback, call_softmax_pullback);
  bind(module, kernels::logsumexp_pullback, call_logsumexp_pullback);
  bind(module, kernels::layer_norm, call_norm<2>);
  bind(module, kernels::rms_norm, call_norm<1>);
  bind(module, kernels::layer_norm_pullback, call_norm_pullback<2>);
  bind(module, kernels::rms_norm_pullback, call_norm_pullback<1>);
  define(module, "divide_by_count", call_divide_by_count, nullptr);
  bind(module, kernels::cross_entropy, call_cross_entropy<false>);
  bind(module, kernels::cross_entropy_pullback, call_cross_entropy_pullback<false>);
  bind(module, kernels::cross_entropy_total, call_cross_entropy<true>);
  bind(module, kernels::cross_entropy_total_pullback, call_cross_entropy_pullback<true>);
  bind(module, kernels::squared_error, call_squared_error);
  bind(module, kernels::squared_error_pullback, call_squared_error_pullback);
}

}  // namespace pb
