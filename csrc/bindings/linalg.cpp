// Binds the factorisations of matrices and what follows from them.
#include "families/linalg.h"

#include <algorithm>

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

using kernels::Linalg;

View matrices_or_refuse(PyObject* object, bool square) {
  const View v = view_or_refuse(object);
  if (!is_float(v.dtype) || v.ndim < 2) throw Refused{"not matrices of floats"};
  if (square && v.shape[v.ndim - 1] != v.shape[v.ndim - 2]) throw Refused{"matrices that are not square"};
  return v;
}

// Returns roughly the flops of a factorisation, which are at least those of copying the matrices.
int64_t work_of(const View& x) { return x.size() * (16 + 2 * std::min(x.shape[x.ndim - 1], x.shape[x.ndim - 2])); }

// The shape of a result, for matrices of m rows and n columns. own: the axes after those of the batch.
struct Shape {
  int own;
  int64_t rows, columns;
};

// An op of one operand, and perhaps a flag or a caller (see families/linalg.h). Its name is that of the kernel.
struct Unary {
  const Kernel Linalg::* kernel;
  bool square, takes_flag;
  Shape (*shape)(int64_t m, int64_t n, bool flag);
};
const Unary kUnary[] = {
    {&Linalg::cholesky, true, false, [](int64_t m, int64_t n, bool) { return Shape{2, m, n}; }},
    {&Linalg::cofactors, true, false, [](int64_t m, int64_t n, bool) { return Shape{2, m, n}; }},
    {&Linalg::det, true, false, [](int64_t, int64_t, bool) { return Shape{0, 0, 0}; }},
    {&Linalg::slogdet, true, false, [](int64_t, int64_t, bool) { return Shape{1, 2, 0}; }},
    {&Linalg::eigh, true, false, [](int64_t m, int64_t n, bool) { return Shape{2, m + 2, n}; }},
    {&Linalg::eigvalsh, true, false, [](int64_t m, int64_t, bool) { return Shape{2, 2, m}; }},
    {&Linalg::svdvals, false, true, [](int64_t m, int64_t n, bool) { return Shape{2, 2, std::min(m, n)}; }},
    {&Linalg::qr, false, true,
     [](int64_t m, int64_t n, bool complete) { return Shape{2, m + n, complete ? m : std::min(m, n)}; }},
    {&Linalg::svd, false, true,
     [](int64_t m, int64_t n, bool full) { return Shape{2, m + 2 + n, full ? std::max(m, n) : std::min(m, n)}; }},
};

// op(x) or op(x, flag)
PyObject* call_unary(const void* table, PyObject* const* args, Py_ssize_t count) {
  const Unary& op = *static_cast<const Unary*>(table);
  expect_count(count, op.takes_flag ? 2 : 1);
  View views[2];
  View &out = views[0], &x = views[1];
  x = matrices_or_refuse(args[0], op.square);
  const int64_t flag = op.takes_flag ? to_int(args[1]) : 0;
  const Shape own = op.shape(x.shape[x.ndim - 2], x.shape[x.ndim - 1], flag != 0);
  int64_t shape[kMaxDims];
  std::copy_n(x.shape, x.ndim - 2, shape);
  shape[x.ndim - 2] = own.rows, shape[x.ndim - 1] = own.columns;
  Result result(x.dtype, x.ndim - 2 + own.own, shape, out);
  run_released({&(kernels::linalg().*op.kernel), 1, 1, views, {flag}, {}, nullptr}, work_of(x));
  return result.hand_out();
}

// Gives the operands of a linear system the axes of its solution. Returns the number of these axes.
int broadcast_system(View& a, View& b, int64_t* shape) {
  if (a.dtype != b.dtype || a.shape[a.ndim - 1] != b.shape[b.ndim - 2]) throw Refused{"another dtype or number of rows"};
  const int ndim = std::max(a.ndim, b.ndim);
  const auto length = [ndim](const View& v, int d) { return d < ndim - v.ndim ? 1 : v.shape[d - (ndim - v.ndim)]; };
  for (int d = 0; d < ndim - 2; ++d) shape[d] = length(a, d) == 1 ? length(b, d) : length(a, d);
  const int64_t rows = a.shape[a.ndim - 1], columns = b.shape[b.ndim - 1];
  shape[ndim - 2] = shape[ndim - 1] = rows;
  bool fits = broadcast_to(a, ndim, shape);
  shape[ndim - 1] = columns;
  fits = fits && broadcast_to(b, ndim, shape);
  if (!fits) throw Refused{"shapes do not broadcast"};
  return ndim;
}

// solve(a, b, strict), solve_triangular(a, b, upper, unit, strict)
template <const Kernel Linalg::* kKernel, int kFlags>
PyObject* call_system(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 2 + kFlags);
  View views[3];
  View &a = views[1], &b = views[2];
  a = matrices_or_refuse(args[0], true), b = matrices_or_refuse(args[1], false);
  int64_t shape[kMaxDims];
  const int ndim = broadcast_system(a, b, shape);
  Launch launch{&(kernels::linalg().*kKernel), 1, 2, views, {}, {}, nullptr};
  for (int k = 0; k < kFlags; ++k) launch.ints[k] = to_int(args[2 + k]);
  Result result(a.dtype, ndim, shape, views[0]);
  run_released(launch, work_of(a) + work_of(b));
  return result.hand_out();
}

// solve_pullback(a, g, x, need_a, need_b) -> (ga, gb), with None for a gradient that is not needed. The batch axes of a broadcast to
// those of x, which ga and gb have.
PyObject* call_solve_pullback(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 5);
  View views[5];
  View &a = views[2], &g = views[3], &x = views[4];
  a = matrices_or_refuse(args[0], true), g = matrices_or_refuse(args[1], false), x = matrices_or_refuse(args[2], false);
  int64_t shape[kMaxDims];
  const int ndim = broadcast_system(a, g, shape);
  if (x.dtype != a.dtype || x.ndim != ndim || !broadcast_to(x, ndim, shape)) throw Refused{"not the solution"};
  Launch launch{&kernels::linalg().solve_pullback, 2, 3, views, {}, {}, nullptr};
  if (!to_bool(args[3])) launch.inputs = 2;  // only the gradient of a reads x
  Gradient ga(args[3], a, ndim, views[0]), gb(args[4], g, ndim, views[1]);
  run_released(launch, 2 * (work_of(a) + work_of(g)));
  return hand_out_all(ga, gb);
}

// pinv(x, rtol, values)
PyObject* call_pinv(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  View views[3];
  View &x = views[1], &rtol = views[2];
  x = matrices_or_refuse(args[0], false), rtol = view_or_refuse(args[1]);
  const int64_t values = to_int(args[2]);
  const int last = x.ndim - 1;
  bool fits = rtol.dtype == x.dtype && rtol.ndim == x.ndim - 2;
  for (int d = 0; fits && d < rtol.ndim; ++d) fits = rtol.shape[d] == x.shape[d];
  if (!fits) throw Refused{"not one tolerance for each matrix"};
  int64_t shape[kMaxDims];
  std::copy_n(x.shape, last - 1, shape);
  shape[last - 1] = x.shape[last] + (values != 0), shape[last] = x.shape[last - 1];
  Result result(x.dtype, x.ndim, shape, views[0]);
  run_released({&kernels::linalg().pinv, 1, 2, views, {values}, {}, nullptr}, work_of(x));
  return result.hand_out();
}

}  // namespace

void bind_linalg(PyObject* module) {
  const Linalg& table = kernels::linalg();
  for (const Unary& op : kUnary) define(module, table.*op.kernel, call_unary, &op);
  define(module, table.solve, call_system<&Linalg::solve, 1>);
  define(module, table.solve_triangular, call_system<&Linalg::solve_triangular, 3>);
  define(module, table.solve_pullback, call_solve_pullback);
  define(module, table.pinv, call_pinv);
}

}  // namespace pb
