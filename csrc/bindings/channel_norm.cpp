// Binds batch norm with running values.
#include "families/channel_norm.h"

#include <algorithm>

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

View channels_or_refuse(PyObject* object) {
  const View v = view_or_refuse(object);
  if (!is_float(v.dtype) || v.ndim != 3) throw Refused{"not floats (N, C, S)"};
  return v;
}
View vector_or_refuse(PyObject* object, const View& x) {
  const View v = view_or_refuse(object);
  if (v.dtype != x.dtype || v.ndim != 1 || v.shape[0] != x.shape[1]) throw Refused{"not (C,) of the same dtype"};
  return v;
}

// Adds a running value to a launch, as an output that is also an input. Returns false for None.
bool add_running(Launch& launch, int output, PyObject* object, const View& x) {
  if (object == Py_None) return launch.out(output) = flat_view(nullptr, DType::f32, 0), false;
  const View v = view_or_refuse(object);
  const bool is_count = output == 3;
  if (is_count
          ? v.dtype != DType::i64 || v.size() != 1
          : !is_float(v.dtype) || compute_type(v.dtype) != compute_type(x.dtype) || v.ndim != 1 || v.shape[0] != x.shape[1])
    throw Refused{"not a running value of x"};
  if (!v.contiguous()) throw Refused{"not contiguous"};
  launch.out(output) = launch.in(launch.inputs++) = v;
  return true;
}

// batch_norm(x, weight or None, bias or None, eps, running_mean or None, running_var or None, num_batches_tracked or None, share or
// None) -> y. The running values are changed in place, by an even share of all batches without a share.
PyObject* call_batch_norm(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 8);
  View views[4 + 6];
  const View& x = views[4] = channels_or_refuse(args[0]);
  Launch launch{&kernels::batch_norm, 4, 1, views, {}, {to_real(args[3])}, nullptr};
  for (int k = 0; k < 2; ++k) {
    launch.ints[k] = args[1 + k] != Py_None;
    if (launch.ints[k]) views[4 + launch.inputs++] = vector_or_refuse(args[1 + k], x);
  }
  bool given[4];
  for (int k = 1; k < 4; ++k) given[k] = add_running(launch, k, args[3 + k], x);
  const bool is_even = args[7] == Py_None;
  if (is_even && !given[3]) throw Refused{"no count of batches"};
  launch.ints[3] = is_even && (given[1] || given[2]);
  const double share = is_even ? 0 : to_real(args[7]);
  const int64_t terms = x.shape[0] * x.shape[2];
  if ((given[1] || given[2]) && terms < 2) throw Refused{"a variance of less than two values"};
  launch.reals[1] = share, launch.reals[2] = 1 - share,
  launch.reals[3] = double(terms) / double(std::max<int64_t>(1, terms - 1));
  Result y(x.dtype, 3, x.shape, views[0]);
  run_released(launch, 2 * x.size());
  return y.hand_out();
}

}  // namespace

void bind_channel_norm(PyObject* module) { define(module, "batch_norm", call_batch_norm, nullptr); }

}  // namespace pb
