// Copies, casts, concatenation, padding, filling.
#include "families/copy.h"

#include <cstring>
#include <vector>

#include "bindings/tables.h"
#include "bindings/result.h"

namespace pb {
namespace {

// Runs a launch that only moves bytes. A byte takes about 0.1 ns, which run_released() counts as half a flop.
PyObject* run_moving(const Kernel& kernel, Result& result, Launch& launch) {
  launch.kernel = &kernel;
  run_released(launch, launch.out().bytes() / 2);
  return result.hand_out();
}

PyObject* copy_as(const Kernel& kernel, PyObject* array, DType dtype) {
  View views[2];
  views[1] = view_or_refuse(array);
  Result result(dtype, views[1].ndim, views[1].shape, views[0]);
  Launch launch{nullptr, 1, 1, views, {}, {}, nullptr};
  return run_moving(kernel, result, launch);
}

// copy(x)
PyObject* call_copy(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"copy", kernels::copy, kernels::copy_cost};
  expect_count(count, 1);
  return copy_as(kernel, args[0], view_or_refuse(args[0]).dtype);
}

// cast(x, dtype)
PyObject* call_cast(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"cast", kernels::copy, kernels::copy_cost};
  expect_count(count, 2);
  return copy_as(kernel, args[0], dtype_of(args[1]));
}

// assign(target, x) writes x, converted to the dtype of the target, into the target's memory.
PyObject* call_assign(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"assign", kernels::copy, kernels::copy_cost};
  expect_count(count, 2);
  View views[2] = {view_or_refuse(args[0]), view_or_refuse(args[1])};
  if (!views[0].contiguous()) throw Refused{"a target that is not contiguous"};
  bool same = views[0].ndim == views[1].ndim;
  for (int d = 0; same && d < views[0].ndim; ++d) same = views[0].shape[d] == views[1].shape[d];
  if (!same) throw Refused{"shapes differ"};
  const Launch launch{&kernel, 1, 1, views, {}, {}, nullptr};
  run_released(launch, views[0].bytes() / 2);
  Py_RETURN_NONE;
}

// concat(arrays, axis)
PyObject* call_concat(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"concat", kernels::concat, kernels::copy_cost};
  expect_count(count, 2);
  const bool sequence = PyList_CheckExact(args[0]) || PyTuple_CheckExact(args[0]);
  const Py_ssize_t inputs = sequence ? PySequence_Fast_GET_SIZE(args[0]) : 0;
  if (inputs == 0) throw Refused{"not a list of arrays"};
  constexpr int kNear = 16;  // at most this many inputs need no allocation for their views
  View near[kNear + 1];
  std::vector<View> far;
  View* views = near;
  if (inputs > kNear) far.resize(inputs + 1), views = far.data();
  for (Py_ssize_t k = 0; k < inputs; ++k) views[k + 1] = view_or_refuse(PySequence_Fast_GET_ITEM(args[0], k));
  const View& first = views[1];
  const int axis = axis_or_refuse(args[1], first.ndim);
  int64_t shape[kMaxDims];
  std::memcpy(shape, first.shape, sizeof shape);
  for (Py_ssize_t k = 2; k <= inputs; ++k) {
    const View& v = views[k];
    if (v.dtype != first.dtype || v.ndim != first.ndim) throw Refused{"arrays of different dtypes or ranks"};
    for (int d = 0; d < first.ndim; ++d)
      if (d != axis && v.shape[d] != shape[d]) throw Refused{"shapes differ beside the axis"};
    shape[axis] = add_lengths(shape[axis], v.shape[axis]);
  }
  Result result(first.dtype, first.ndim, shape, views[0]);
  Launch launch{nullptr, 1, int(inputs), views, {axis}, {}, nullptr};
  return run_moving(kernel, result, launch);
}

int64_t to_int_within(PyObject* number, DType dtype) {
  if (!PyLong_Check(number)) throw Refused{"not an integer"};
  int overflow;
  const int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
  const int bits = 8 * item_size(dtype);
  const bool is_signed = dtype <= DType::i64;
  const int64_t most = bits == 64 ? INT64_MAX : (int64_t(1) << (bits - is_signed)) - 1;
  const int64_t least = is_signed ? -most - 1 : 0;
  if (overflow || value > most || value < least) throw Refused{"integer out of the dtype's range"};
  return value;
}

// Converts a Python number to a dtype and returns its bits in a double, so that Launch::reals can carry them.
double bits_of(PyObject* number, DType dtype) {
  uint64_t bits = 0;
  if (dtype == DType::b8) {
    bits = to_bool(number);
  } else if (dtype == DType::u64 && PyLong_Check(number)) {
    bits = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred()) {
      PyErr_Clear();
      throw Refused{"integer out of the dtype's range"};
    }
  } else if (!is_float(dtype)) {
    bits = uint64_t(to_int_within(number, dtype));
  } else {
    visit(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
        const T value = T(to_real(number));
        std::memcpy(&bits, &value, sizeof value);
      } else if constexpr (!std::is_integral_v<T>) {
        const T value = T(float(to_real(number)));
        std::memcpy(&bits, &value, sizeof value);
      }
    });
  }
  double carrier;
  std::memcpy(&carrier, &bits, sizeof carrier);
  return carrier;
}

// pad(x, before, after, number)
PyObject* call_pad(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"pad", kernels::pad, kernels::copy_cost};
  expect_count(count, 4);
  View views[2];
  views[1] = view_or_refuse(args[0]);
  Launch launch{nullptr, 1, 1, views, {}, {bits_of(args[3], views[1].dtype)}, nullptr};
  int64_t after[kMaxDims], shape[kMaxDims];
  const int ndim = views[1].ndim;
  if (to_ints(args[1], launch.ints, kMaxDims) != ndim || to_ints(args[2], after, kMaxDims) != ndim)
    throw Refused{"one length before and one after each axis"};
  for (int d = 0; d < ndim; ++d) {
    if (launch.ints[d] < 0 || after[d] < 0) throw Refused{"negative padding"};
    shape[d] = add_lengths(add_lengths(launch.ints[d], views[1].shape[d]), after[d]);
  }
  Result result(views[1].dtype, ndim, shape, views[0]);
  return run_moving(kernel, result, launch);
}

// fill(shape, dtype, number)
PyObject* call_fill(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"fill", kernels::fill, kernels::copy_cost};
  expect_count(count, 3);
  int64_t shape[kMaxDims];
  const int ndim = to_ints(args[0], shape, kMaxDims);
  const DType dtype = dtype_of(args[1]);
  View out;
  Launch launch{nullptr, 1, 0, &out, {}, {bits_of(args[2], dtype)}, nullptr};
  Result result(dtype, ndim, shape, out);
  return run_moving(kernel, result, launch);
}

// empty(shape, dtype): memory of the pool, which holds anything
PyObject* call_empty(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 2);
  int64_t shape[kMaxDims];
  const int ndim = to_ints(args[0], shape, kMaxDims);
  View out;
  return new_array(dtype_of(args[1]), ndim, shape, out);
}

}  // namespace

void bind_copy(PyObject* module) {
  define(module, "copy", call_copy, nullptr);
  define(module, "cast", call_cast, nullptr);
  define(module, "assign", call_assign, nullptr);
  define(module, "concat", call_concat, nullptr);
  define(module, "pad", call_pad, nullptr);
  define(module, "fill", call_fill, nullptr);
  define(module, "empty", call_empty, nullptr);
}

}  // namespace pb
