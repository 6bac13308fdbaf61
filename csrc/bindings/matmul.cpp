// Binds matrix products, and the linear layer with its pullback.
#include <algorithm>
#include <cstring>
#include <optional>

#include "bindings/result.h"
#include "bindings/tables.h"
#include "families/executed.h"
#include "families/matmul.h"

namespace pb {
namespace {

using kernels::Linear;

// Returns the work that run_released() expects for a product: 32 multiply-adds take about as long as one flop of an elementwise op.
int64_t released_work(int64_t multiply_adds) { return multiply_adds / 32; }

// Turn a vector into a matrix of one row or of one column.
void as_rows(View& v) {
  std::memmove(v.shape + 1, v.shape, sizeof(int64_t)), std::memmove(v.stride + 1, v.stride, sizeof(int64_t));
  v.ndim = 2, v.shape[0] = 1, v.stride[0] = 0;
}
void as_columns(View& v) { v.ndim = 2, v.shape[1] = 1, v.stride[1] = 0; }

// Broadcasts the batch axes of a and b by NumPy's rules and writes their lengths to `shape`. Returns the number of batch axes.
int batch_shape(const View& a, const View& b, int64_t* shape) {
  const int axes = std::max(a.ndim, b.ndim) - 2;
  for (int d = 0; d < axes; ++d) {
    const int da = d - axes + a.ndim - 2, db = d - axes + b.ndim - 2;
    const int64_t length_a = da >= 0 ? a.shape[da] : 1, length_b = db >= 0 ? b.shape[db] : 1;
    if (length_a != length_b && length_a != 1 && length_b != 1) throw Refused{"batch axes do not broadcast"};
    shape[d] = length_a == 1 ? length_b : length_a;
  }
  return axes;
}

// matmul(a, b)
PyObject* call_matmul(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"matmul", kernels::matmul, kernels::matmul_cost, kernels::executed_matmul};
  expect_count(count, 2);
  View views[3];
  View &out = views[0], &a = views[1] = view_or_refuse(args[0]), &b = views[2] = view_or_refuse(args[1]);
  if (a.dtype != b.dtype) throw Refused{"arrays of different dtypes"};
  if (a.ndim == 0 || b.ndim == 0) throw Refused{"an operand without axes"};
  const bool row = a.ndim == 1, column = b.ndim == 1;
  if (row) as_rows(a);
  if (column) as_columns(b);
  int64_t shape[kMaxDims];
  const int axes = batch_shape(a, b, shape);
  const int64_t m = a.shape[a.ndim - 2], k = a.shape[a.ndim - 1], n = b.shape[b.ndim - 1];
  if (b.shape[b.ndim - 2] != k) throw Refused{"inner lengths differ"};
  int ndim = axes;
  if (!row) shape[ndim++] = m;
  if (!column) shape[ndim++] = n;
  Result result(a.dtype, ndim, shape, out);
  const int64_t size = item_size(a.dtype);
  out.ndim = axes + 2;
  out.shape[axes] = m, out.shape[axes + 1] = n;
  out.stride[axes] = n * size, out.stride[axes + 1] = size;
  Launch launch{&kernel, 1, 2, views, {}, {}, nullptr};
  run_released(launch, released_work(out.size() * k));
  return result.hand_out();
}

int64_t to_activation(PyObject* number) {
  const int64_t activation = to_int(number);
  if (activation < 0 || activation >= kernels::kActivations) throw Refused{"an unknown activation"};
  return activation;
}

void require_layer(const View& x, const View& w) {
  if (!is_float(x.dtype) || w.dtype != x.dtype) throw Refused{"not arrays of one floating dtype"};
  if (x.ndim == 0 || w.ndim != 2 || x.shape[x.ndim - 1] != w.shape[1]) throw Refused{"shapes do not fit"};
}

// linear(x, w, b_or_None, activation)
PyObject* call_linear(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  View views[4];
  View &out = views[0], &x = views[1] = view_or_refuse(args[0]), &w = views[2] = view_or_refuse(args[1]);
  require_layer(x, w);
  const bool biased = args[2] != Py_None;
  if (biased) {
    const View& b = views[3] = view_or_refuse(args[2]);
    if (b.dtype != x.dtype || b.ndim != 1 || b.shape[0] != w.shape[0]) throw Refused{"the bias does not fit"};
  }
  const auto& op = *static_cast<const Linear*>(table);
  Launch launch{&op.kernel, 1, 2 + biased, views, {to_activation(args[3])}, {}, &op};
  int64_t shape[kMaxDims];
  std::memcpy(shape, x.shape, sizeof shape);
  shape[x.ndim - 1] = w.shape[0];
  Result result(x.dtype, x.ndim, shape, out);
  run_released(launch, released_work(out.size() * (w.shape[1] + 32)));
  return result.hand_out();
}

// linear_pullback(g, x, w, y, activation, need_x, need_w, need_b) -> (gx, gw, gb), with None for a gradient that is not needed.
PyObject* call_linear_pullback(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 8);
  const auto& op = *static_cast<const Linear*>(table);
  View views[7];
  View &g = views[3], &x = views[4], &w = views[5], &y = views[6];
  g = view_or_refuse(args[0]), x = view_or_refuse(args[1]), w = view_or_refuse(args[2]);
  require_layer(x, w);
  Launch launch{&op.kernel, 3, 4, views, {to_activation(args[4])}, {}, &op};
  y = launch.ints[0] ? view_or_refuse(args[3]) : g;
  for (const View* v : {&g, &y}) {
    bool fits = v->dtype == x.dtype && v->ndim == x.ndim && v->shape[x.ndim - 1] == w.shape[0];
    for (int d = 0; fits && d < x.ndim - 1; ++d) fits = v->shape[d] == x.shape[d];
    if (!fits) throw Refused{"the cotangent does not fit"};
  }
  Gradient gx(args[5], x, x.ndim, views[0]), gw(args[6], w, 2, views[1]), gb(args[7], w, 1, views[2]);
  run_released(launch, released_work(g.size() * (2 * w.shape[1] + 32)));
  return hand_out_all(gx, gw, gb);
}

// set_matmul_precision(number) -> the previous number. Sets this thread's precision; the numbers are those of kernels::Precision.
PyObject* call_set_precision(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int64_t number = to_int(args[0]);
  if (number < 0 || number >= kernels::kPrecisions) throw Refused{"an unknown precision"};
  const auto before = long(kernels::precision());
  kernels::set_precision(kernels::Precision(number));
  return PyLong_FromLong(before);
}

}  // namespace

void bind_matmul(PyObject* module) {
  PyObject* activations = PyTuple_New(kernels::kActivations);  // the names of the activations of `linear`, by number
  if (!activations || PyModule_AddObject(module, "activations", activations) < 0) throw PythonError{};
  for (int k = 0; k < kernels::kActivations; ++k) {
    PyObject* name = PyUnicode_FromString(kernels::kActivationNames[k]);
    if (!name) throw PythonError{};
    PyTuple_SET_ITEM(activations, k, name);
  }
  define(module, "matmul", call_matmul, nullptr);
  define(module, "linear", call_linear, &kernels::linear_forward());
  define(module, "linear_pullback", call_linear_pullback, &kernels::linear_backward());
  define(module, "set_matmul_precision", call_set_precision, nullptr);
}

}  // namespace pb
