// Binds attention, its pullback and its tangent.
#include "families/attention.h"

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

View floats(PyObject* object, DType dtype, int ndim) {
  const View v = view_or_refuse(object);
  if (v.dtype != dtype || v.ndim != ndim) throw Refused{"operands of different dtypes or ranks"};
  return v;
}

// Throws Refused unless the axes before the last `but` are the same.
void expect_same_axes(const View& a, const View& b, int but) {
  if (!std::equal(a.shape, a.shape + a.ndim - but, b.shape)) throw Refused{"operands of different shapes"};
}

// Reads a mask or None, broadcast to the scores of q and k.
View mask_of(PyObject* object, const View& q, const View& k) {
  if (object == Py_None) return absent(q.dtype);
  View mask = view_or_refuse(object);
  int64_t scores[kMaxDims];
  std::copy_n(q.shape, q.ndim - 1, scores), scores[q.ndim - 1] = k.shape[q.ndim - 2];
  const bool fits = mask.dtype == q.dtype || mask.dtype == storage_of(compute_type(q.dtype)) || mask.dtype == DType::b8;
  if (!fits || !broadcast_to(mask, q.ndim, scores)) throw Refused{"the mask does not fit"};
  return mask;
}

// Reads q, k, v and the mask or None into `views`.
void read_inputs(PyObject* const* args, View* views) {
  View &q = views[0], &k = views[1], &v = views[2], &mask = views[3];
  q = view_or_refuse(args[0]);
  const int n = q.ndim;
  if (!is_float(q.dtype) || n < 3) throw Refused{"queries of another dtype or rank"};
  k = floats(args[1], q.dtype, n), v = floats(args[2], q.dtype, n);
  expect_same_axes(q, k, 3), expect_same_axes(k, v, 1);
  const int64_t heads = q.shape[n - 3], groups = k.shape[n - 3];
  if (q.shape[n - 1] != k.shape[n - 1] || (groups ? heads % groups != 0 : heads != 0)) throw Refused{"heads do not fit"};
  if (!kernels::fits_attention(q.shape[n - 2], k.shape[n - 2], q.shape[n - 1], v.shape[n - 1])) throw Refused{"too many keys"};
  mask = mask_of(args[3], q, k);
}

int64_t work_of(const View& q, const View& k) { return q.size() * (k.ndim ? k.shape[k.ndim - 2] : 0) * 4; }

// attention(q, k, v, mask_or_None, causal, scale)
PyObject* call_attention(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 6);
  View views[5];
  read_inputs(args, views + 1);
  const View &q = views[1], &v = views[3];
  int64_t shape[kMaxDims];
  std::copy_n(q.shape, q.ndim, shape), shape[q.ndim - 1] = v.shape[q.ndim - 1];
  Result y(q.dtype, q.ndim, shape, views[0]);
  const Launch launch{&kernels::attention, 1, 4, views, {to_bool(args[4])}, {to_real(args[5])}, nullptr};
  run_released(launch, work_of(q, views[2]));
  return y.hand_out();
}

// attention_pullback(g, q, k, v, mask_or_None, y, causal, scale, need_q, need_k, need_v) -> (gq, gk, gv), None if not needed
PyObject* call_pullback(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 11);
  View views[9];
  read_inputs(args + 1, views + 5);
  const View& q = views[5];
  views[3] = floats(args[0], q.dtype, q.ndim), views[4] = floats(args[5], q.dtype, q.ndim);
  for (const View* v : {&views[3], &views[4]}) {
    expect_same_axes(q, *v, 1);
    if (v->shape[q.ndim - 1] != views[7].shape[q.ndim - 1]) throw Refused{"the result has another shape"};
  }
  const View &k = views[6], &v = views[7];
  Gradient gq(args[8], q, q.ndim, views[0]), gk(args[9], k, q.ndim, views[1]), gv(args[10], v, q.ndim, views[2]);
  run_released({&kernels::attention_pullback, 3, 6, views, {to_bool(args[6])}, {to_real(args[7])}, nullptr}, work_of(q, k));
  return hand_out_all(gq, gk, gv);
}

// Reads the tangent of an input of this shape, or None.
View tangent_of(PyObject* object, const View& x) {
  if (object == Py_None) return absent(x.dtype);
  const View t = floats(object, x.dtype, x.ndim);
  expect_same_axes(x, t, 0);
  return t;
}

// attention_tangent(q, k, v, mask, tq, tk, tv, tmask, causal, scale): the mask and each tangent may be None.
PyObject* call_tangent(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 10);
  View views[9];
  read_inputs(args, views + 1);
  const View &q = views[1], &k = views[2], &v = views[3];
  for (int i = 0; i < 3; ++i) views[5 + i] = tangent_of(args[4 + i], views[1 + i]);
  views[8] = mask_of(args[7], q, k);
  if (views[8].dtype == DType::b8) throw Refused{"the tangent of a mask of bools"};
  int64_t shape[kMaxDims];
  std::copy_n(q.shape, q.ndim, shape), shape[q.ndim - 1] = v.shape[q.ndim - 1];
  Result y(q.dtype, q.ndim, shape, views[0]);
  run_released({&kernels::attention_tangent, 1, 8, views, {to_bool(args[8])}, {to_real(args[9])}, nullptr}, work_of(q, k));
  return y.hand_out();
}

}  // namespace

void bind_attention(PyObject* module) {
  define(module, kernels::attention, call_attention);
  define(module, kernels::attention_pullback, call_pullback);
  define(module, kernels::attention_tangent, call_tangent);
}

}  // namespace pb
