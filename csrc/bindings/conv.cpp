// Binds the three ops of convolutions.
#include "families/conv.h"

#include <algorithm>

#include "bindings/result.h"
#include "bindings/tables.h"
#include "launch/memory.h"

namespace pb {
namespace {

// The most of a length, a stride, a padding, a dilation, and of the distance between the taps of a kernel, so that positions do not
// overflow. Python refuses larger numbers of the caller's in words, so the others are lengths for which there is no memory.
constexpr int64_t kMost = int64_t{1} << 42;

View planes_or_refuse(PyObject* object) {
  const View v = view_or_refuse(object);
  if (!is_float(v.dtype)) throw Refused{"not a float dtype"};
  if (v.ndim != 4) throw Refused{"a convolution needs four axes"};
  if (v.shape[2] > kMost || v.shape[3] > kMost) throw std::bad_alloc();
  return v;
}

void read_pair(PyObject* object, int64_t least, int64_t* to, int apart) {
  int64_t pair[2];
  if (to_ints(object, pair, 2) != 2) throw Refused{"not one number for the height and one for the width"};
  for (int d = 0; d < 2; ++d) {
    if (pair[d] < least) throw Refused{"a number outside its range"};
    if (pair[d] > kMost) throw std::bad_alloc();
    to[d * apart] = pair[d];
  }
}

// Reads (stride, padding, dilation, groups) into the ints of the launch. The padding may be negative.
void read_geometry(PyObject* const* args, Launch& launch) {
  read_pair(args[0], 1, launch.ints + 1, 3);
  read_pair(args[1], -kMost, launch.ints + 2, 3);
  read_pair(args[2], 1, launch.ints + 3, 3);
  launch.ints[0] = to_int(args[3]);
  if (launch.ints[0] < 1) throw Refused{"fewer than one group"};
}

void require(bool fits) {
  if (!fits) throw Refused{"shapes or dtypes do not fit"};
}

// Checks that the channels of x, w and y fit each other.
void require_channels(const View& x, const View& w, const View& y, int64_t groups) {
  require(x.shape[0] == y.shape[0] && x.shape[1] == w.shape[1] * groups && y.shape[1] == w.shape[0]);
  require(w.shape[0] % groups == 0);
}

PyObject* run_conv(Launch& launch, const View& y, const View& w, Result& result) {
  for (int d = 0; d < 2; ++d)
    if (elements_of(std::max<int64_t>(1, w.shape[2 + d]) - 1, launch.ints[3 + 3 * d]) > kMost) throw std::bad_alloc();
  const double products = double(y.size()) * double(w.shape[1]) * double(w.shape[2]) * double(w.shape[3]);
  run_released(launch, y.size() + int64_t(std::min(products / 32, 1e18)));
  return result.hand_out();
}

// convolution(x, w, bias_or_None, stride, padding, dilation, groups, size) -> y, whose height and width are `size`
PyObject* call_convolution(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 8);
  View views[4];
  View &y = views[0], &x = views[1] = planes_or_refuse(args[0]), &w = views[2] = planes_or_refuse(args[1]);
  const bool biased = args[2] != Py_None;
  Launch launch{static_cast<const Kernel*>(table), 1, 2 + biased, views, {}, {}, nullptr};
  read_geometry(args + 3, launch);
  int64_t shape[4] = {x.shape[0], w.shape[0], 0, 0};
  read_pair(args[7], 0, shape + 2, 1);
  require(x.dtype == w.dtype && x.shape[1] == w.shape[1] * launch.ints[0] && w.shape[0] % launch.ints[0] == 0);
  if (biased) {
    const View& b = views[3] = view_or_refuse(args[2]);
    require(b.dtype == x.dtype && b.ndim == 1 && b.shape[0] == w.shape[0]);
  }
  Result result(x.dtype, 4, shape, y);
  return run_conv(launch, y, w, result);
}

// convolution_input(g, w, stride, padding, dilation, groups, size) -> gx, whose height and width are `size`
PyObject* call_input(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 7);
  View views[3];
  View &gx = views[0], &g = views[1] = planes_or_refuse(args[0]), &w = views[2] = planes_or_refuse(args[1]);
  Launch launch{static_cast<const Kernel*>(table), 1, 2, views, {}, {}, nullptr};
  read_geometry(args + 2, launch);
  require(w.dtype == g.dtype);
  int64_t shape[4] = {g.shape[0], w.shape[1] * launch.ints[0], 0, 0};
  read_pair(args[6], 0, shape + 2, 1);
  require(g.shape[1] == w.shape[0] && w.shape[0] % launch.ints[0] == 0);
  Result result(g.dtype, 4, shape, gx);
  return run_conv(launch, g, w, result);
}

// convolution_weight(x, g, stride, padding, dilation, groups, size) -> gw, whose height and width are `size`
PyObject* call_weight(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 7);
  View views[3];
  View &gw = views[0], &x = views[1] = planes_or_refuse(args[0]), &g = views[2] = planes_or_refuse(args[1]);
  Launch launch{static_cast<const Kernel*>(table), 1, 2, views, {}, {}, nullptr};
  read_geometry(args + 2, launch);
  require(x.dtype == g.dtype && x.shape[1] % launch.ints[0] == 0);
  int64_t shape[4] = {g.shape[1], x.shape[1] / launch.ints[0], 0, 0};
  read_pair(args[6], 0, shape + 2, 1);
  Result result(x.dtype, 4, shape, gw);
  require_channels(x, gw, g, launch.ints[0]);
  return run_conv(launch, g, gw, result);
}

}  // namespace

void bind_conv(PyObject* module) {
  define(module, kernels::convolution, call_convolution, &kernels::convolution);
  define(module, kernels::convolution_input, call_input, &kernels::convolution_input);
  define(module, kernels::convolution_weight, call_weight, &kernels::convolution_weight);
}

}  // namespace pb
