// Binds recurrent layers: all steps of one layer in one direction.
#include "families/recurrent.h"

#include <cstring>
#include <optional>

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

using kernels::CellKind;
using kernels::RecurrentOp;

constexpr int64_t kGateWork = 32;  // the time of a gate, in simple elements

bool has_shape(const View& v, DType dtype, std::initializer_list<int64_t> shape) {
  if (v.dtype != dtype || v.ndim != int(shape.size())) return false;
  return std::equal(shape.begin(), shape.end(), v.shape);
}
View expected(PyObject* object, DType dtype, std::initializer_list<int64_t> shape) {
  const View v = view_or_refuse(object);
  if (!has_shape(v, dtype, shape)) throw Refused{"shapes or dtypes do not fit"};
  return v;
}

// Returns the kind of cell. The activation of a plain cell is an argument: 1 for relu.
CellKind kind_of(const RecurrentOp& op, PyObject* relu) {
  return op.kind == CellKind::tanh && to_bool(relu) ? CellKind::relu : op.kind;
}
int gates_of(CellKind kind) {
  return kernels::visit_cell(kind, [](auto cell) { return int(decltype(cell)::kGates); });
}
int kept_of(CellKind kind) {
  return kernels::visit_cell(kind, [](auto cell) { return int(decltype(cell)::kKept); });
}

View weight_of(PyObject* object, CellKind kind) {
  const View w = view_or_refuse(object);
  if (!is_float(w.dtype) || w.ndim != 2 || w.shape[1] < 1 || w.shape[0] != gates_of(kind) * w.shape[1])
    throw Refused{"a weight of another shape"};
  return w;
}
int64_t released_work(int64_t elements, const View& w) { return elements * (w.shape[0] / 32 + kGateWork); }

// lstm(x, h, c, w, b_or_None, reverse), gru(x, h, w, b_or_None, reverse), rnn(x, h, w, b_or_None, reverse, relu)
PyObject* call_forward(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& op = *static_cast<const RecurrentOp*>(table);
  const bool is_long = op.kind == CellKind::lstm, is_plain = op.kind == CellKind::tanh;
  expect_count(count, 5 + is_long + is_plain);
  const CellKind kind = kind_of(op, args[count - 1]);
  View views[6];
  View &y = views[0], &x = views[1], &h = views[2], &w = views[3], &c = views[4], &b = views[5];
  w = weight_of(args[2 + is_long], kind);
  x = view_or_refuse(args[0]);
  if (x.ndim != 3 || !has_shape(x, w.dtype, {x.shape[0], x.shape[1], w.shape[0]})) throw Refused{"x does not fit the weight"};
  const int64_t steps = x.shape[0], rows = x.shape[1], hidden = w.shape[1];
  h = expected(args[1], w.dtype, {rows, hidden});
  c = is_long ? expected(args[2], w.dtype, {rows, hidden}) : absent(w.dtype);
  PyObject* const bias = args[3 + is_long];
  b = bias == Py_None ? absent(w.dtype) : expected(bias, w.dtype, {w.shape[0]});
  const int64_t shape[4] = {kept_of(kind), steps, rows, hidden};
  Result result(w.dtype, 4, shape, y);
  const Launch launch{&op.forward, 1, 5, views, {int64_t(kind), to_bool(args[4 + is_long])}, {}, &op};
  run_released(launch, released_work(steps * rows * hidden, w));
  return result.hand_out();
}

// lstm_pullback(g, h, c, w, y, reverse, of_h) -> (gx, gh, gc), gru_pullback(g, h, w, y, reverse, of_h) -> (gx, gh, gp),
// rnn_pullback(g, h, w, y, reverse, relu, of_h) -> (gx, gh). gh is None unless of_h.
PyObject* call_backward(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& op = *static_cast<const RecurrentOp*>(table);
  const bool is_long = op.kind == CellKind::lstm, is_plain = op.kind == CellKind::tanh;
  expect_count(count, 6 + is_long + is_plain);
  const CellKind kind = kind_of(op, args[count - 2]);
  View views[9];
  View &g = views[4], &y = views[5], &h = views[6], &w = views[7], &c = views[8];
  w = weight_of(args[2 + is_long], kind);
  y = view_or_refuse(args[3 + is_long]);
  const int64_t hidden = w.shape[1];
  if (y.ndim != 4 || !y.contiguous() || !has_shape(y, w.dtype, {kept_of(kind), y.shape[1], y.shape[2], hidden}))
    throw Refused{"the result does not fit the weight"};
  const int64_t steps = y.shape[1], rows = y.shape[2], state[2] = {rows, hidden}, inputs[3] = {steps, rows, w.shape[0]};
  g = expected(args[0], w.dtype, {kept_of(kind), steps, rows, hidden});
  h = expected(args[1], w.dtype, {rows, hidden});
  c = is_long ? expected(args[2], w.dtype, {rows, hidden}) : absent(w.dtype);
  Result gx(w.dtype, 3, inputs, views[0]);
  std::optional<Result> gh, more;
  views[1] = views[2] = views[3] = absent(w.dtype);
  if (to_bool(args[count - 1])) gh.emplace(w.dtype, 2, state, views[1]);
  if (is_long) more.emplace(w.dtype, 2, state, views[2]);
  else if (!is_plain) more.emplace(w.dtype, 3, inputs, views[3]);
  const Launch launch{&op.backward, 4, 5, views, {int64_t(kind), to_bool(args[4 + is_long])}, {}, &op};
  run_released(launch, released_work(steps * rows * hidden, w));
  PyObject* result = PyTuple_New(2 + bool(more));
  if (!result) throw PythonError{};
  PyTuple_SET_ITEM(result, 0, gx.hand_out());
  PyTuple_SET_ITEM(result, 1, gh ? gh->hand_out() : Py_NewRef(Py_None));
  if (more) PyTuple_SET_ITEM(result, 2, more->hand_out());
  return result;
}

}  // namespace

void bind_recurrent(PyObject* module) {
  for (const RecurrentOp& op : kernels::recurrent_ops) {
    define(module, op.forward, call_forward, &op);
    define(module, op.backward, call_backward, &op);
  }
}

}  // namespace pb
