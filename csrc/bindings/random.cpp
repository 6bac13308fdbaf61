// Binds the random numbers (one table row per real distribution) and dropout. `state` is a uint64 array [seed, serial of the call].
#include "families/random.h"

#include "bindings/result.h"
#include "bindings/tables.h"
#include "families/executed.h"
#include "families/sort.h"

namespace pb {
namespace {

constexpr int64_t kDrawWork = 8;  // the work of drawing one element, in flops

View state_or_refuse(PyObject* object) {
  const View state = view_or_refuse(object);
  if (state.dtype != DType::u64 || state.size() != 2 || !state.contiguous()) throw Refused{"not a state [seed, serial]"};
  return state;
}

// A distribution of real numbers: its kernel, and the number of its parameters.
struct Distribution {
  Kernel kernel;
  int params;
};

// <distribution>(state, shape, dtype, params…)
PyObject* call_real(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& op = *static_cast<const Distribution*>(table);
  expect_count(count, 3 + op.params);
  View views[2];
  int64_t shape[kMaxDims];
  views[1] = state_or_refuse(args[0]);
  const int ndim = to_ints(args[1], shape, kMaxDims);
  const DType dtype = dtype_of(args[2]);
  if (!is_float(dtype)) throw Refused{"a dtype that is not floating"};
  Launch launch{&op.kernel, 1, 1, views, {}, {}, nullptr};
  for (int k = 0; k < op.params; ++k) launch.reals[k] = to_real(args[3 + k]);
  Result result(dtype, ndim, shape, views[0]);
  run_released(launch, views[0].size() * kDrawWork);
  return result.hand_out();
}

// bernoulli(state, shape, p) -> bool
PyObject* call_bernoulli(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"bernoulli", kernels::bernoulli, kernels::random_cost<0, 2, 0>};
  expect_count(count, 3);
  View views[2];
  int64_t shape[kMaxDims];
  views[1] = state_or_refuse(args[0]);
  const int ndim = to_ints(args[1], shape, kMaxDims);
  Launch launch{&kernel, 1, 1, views, {}, {to_real(args[2])}, nullptr};
  Result result(DType::b8, ndim, shape, views[0]);
  run_released(launch, views[0].size() * kDrawWork);
  return result.hand_out();
}

// randint(state, shape, dtype, low, high)
PyObject* call_randint(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"randint", kernels::randint, kernels::random_cost<0, 0, 0>};
  expect_count(count, 5);
  View views[2];
  int64_t shape[kMaxDims];
  views[1] = state_or_refuse(args[0]);
  const int ndim = to_ints(args[1], shape, kMaxDims);
  const DType dtype = dtype_of(args[2]);
  if (is_float(dtype) || dtype == DType::b8) throw Refused{"a dtype that is not an integer's"};
  Launch launch{&kernel, 1, 1, views, {to_int(args[3]), to_int(args[4])}, {}, nullptr};
  if (launch.ints[0] >= launch.ints[1]) throw Refused{"an empty range"};
  Result result(dtype, ndim, shape, views[0]);
  run_released(launch, views[0].size() * kDrawWork);
  return result.hand_out();
}

// random_keys(state, count) -> uint64; permutation(state, count) -> int64
PyObject* call_flat(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& kernel = *static_cast<const Kernel*>(table);
  expect_count(count, 2);
  View views[2];
  const int64_t n = to_length(args[1]);
  if (n < 0 || n >= kernels::kMaxRow) throw Refused{"a count below 0, or of more than 2^32"};
  views[1] = state_or_refuse(args[0]);
  Result result(kernel.run == kernels::permutation ? DType::i64 : DType::u64, 1, &n, views[0]);
  run_released({&kernel, 1, 1, views, {}, {}, nullptr}, n * 2 * kDrawWork);
  return result.hand_out();
}

// dropout(x, state, p). Its pullback is the same function, applied to the cotangent with the same state.
PyObject* call_dropout(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"dropout", kernels::dropout, kernels::dropout_cost, kernels::executed_dropout};
  expect_count(count, 3);
  View views[3];
  views[1] = view_or_refuse(args[0]);
  if (!is_float(views[1].dtype)) throw Refused{"a dtype that is not floating"};
  views[2] = state_or_refuse(args[1]);
  Launch launch{&kernel, 1, 2, views, {}, {to_real(args[2])}, nullptr};
  Result result(views[1].dtype, views[1].ndim, views[1].shape, views[0]);
  run_released(launch, views[0].size() * kDrawWork);
  return result.hand_out();
}

// random_state(state, offset) -> a new state, `offset` calls further on. advance_state(state, offset) changes the state in place.
template <bool kInPlace> PyObject* call_random_state(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"random_state", kernels::random_state, kernels::random_cost<0, 0, 0>};
  expect_count(count, 2);
  View views[2];
  views[1] = state_or_refuse(args[0]);
  const Launch launch{&kernel, 1, 1, views, {to_int(args[1])}, {}, nullptr};
  if constexpr (kInPlace) {
    views[0] = views[1];
    run(launch);
    Py_RETURN_NONE;
  }
  Result result(DType::u64, 1, views[1].shape, views[0]);
  run(launch);
  return result.hand_out();
}

}  // namespace

void bind_random(PyObject* module) {
  static const Distribution rows[] = {
      {{"uniform", kernels::uniform, kernels::random_cost<2, 4, 0>}, 2},
      {{"normal", kernels::normal, kernels::random_cost<3, 7, 4>}, 2},
      {{"truncated_normal", kernels::truncated_normal, kernels::random_cost<6, 8, 2, 2>}, 4},
  };
  static const Kernel keys{"random_keys", kernels::random_keys, kernels::random_cost<0, 0, 0>},
      permutation{"permutation", kernels::permutation, kernels::random_cost<0, 0, 0>};
  for (const Distribution& row : rows) define(module, row.kernel.name, call_real, &row);
  for (const Kernel* kernel : {&keys, &permutation}) define(module, kernel->name, call_flat, kernel);
  define(module, "bernoulli", call_bernoulli, nullptr);
  define(module, "randint", call_randint, nullptr);
  define(module, "dropout", call_dropout, nullptr);
  define(module, "random_state", call_random_state<false>, nullptr);
  define(module, "advance_state", call_random_state<true>, nullptr);
}

}  // namespace pb
