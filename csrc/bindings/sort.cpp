// Along an axis, in order: sort, argsort, topk_indices, searchsorted; running sums, products and maxima.
#include <algorithm>

#include "bindings/tables.h"
#include "bindings/result.h"
#include "cpu/cumulative.h"
#include "cpu/scatter.h"
#include "kernels/order.h"
#include "kernels/sort.h"
#include "math/counting.h"

namespace pb {
namespace {

constexpr int64_t kSortWork = 16;  // of an element, in units of a flop

View row_or_refuse(PyObject* object) {
  const View x = view_or_refuse(object);
  for (int d = 0; d < x.ndim; ++d)
    if (x.shape[d] >= kernels::kMaxRow) throw Refused{"an axis of more than 2^32 elements"};
  return x;
}

int64_t flag(PyObject* object) { return PyObject_IsTrue(object) == 1; }

// sort(x, axis, descending, stable) and argsort: stable either way.
PyObject* call_sort(const void* table, PyObject* const* args, Py_ssize_t count) {
  const auto& kernel = *static_cast<const Kernel*>(table);
  expect_count(count, 4);
  View views[2];
  views[1] = row_or_refuse(args[0]);
  const int axis = axis_or_refuse(args[1], views[1].ndim);
  Result result(kernel.run == kernels::argsort ? DType::i64 : views[1].dtype, views[1].ndim, views[1].shape, views[0]);
  run_released({&kernel, 1, 1, views, {axis, flag(args[2])}, {}, nullptr}, views[1].size() * kSortWork);
  return result.hand_out();
}

// topk_indices(x, k, axis, largest): sorted, the best first; of equals the first ones; NaN last.
PyObject* call_topk(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"topk_indices", kernels::first_positions, kernels::sort_cost};
  expect_count(count, 4);
  View views[2];
  views[1] = row_or_refuse(args[0]);
  const int64_t k = to_int(args[1]);
  const int axis = axis_or_refuse(args[2], views[1].ndim);
  if (k < 0 || k > views[1].shape[axis]) throw Refused{"k is not within the length of the axis"};
  int64_t shape[kMaxDims];
  std::copy_n(views[1].shape, views[1].ndim, shape);
  shape[axis] = k;
  Result result(DType::i64, views[1].ndim, shape, views[0]);
  run_released({&kernel, 1, 1, views, {axis, flag(args[3]), k}, {}, nullptr}, views[1].size() * 4);
  return result.hand_out();
}

// searchsorted(sorted, values, right).
PyObject* call_searchsorted(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"searchsorted", kernels::searchsorted, kernels::sort_cost};
  expect_count(count, 3);
  View views[3];
  views[1] = view_or_refuse(args[0]);
  views[2] = view_or_refuse(args[1]);
  if (views[1].ndim != 1) throw Refused{"not one sorted axis"};
  if (views[1].dtype != views[2].dtype) throw Refused{"arrays of different dtypes"};
  Result result(DType::i64, views[2].ndim, views[2].shape, views[0]);
  run_released({&kernel, 1, 2, views, {flag(args[2])}, {}, nullptr}, views[2].size() * kSortWork + views[1].size());
  return result.hand_out();
}

struct Multiply {
  template <class A> A operator()(A y, A x) const { return m::multiply(y, x); }
  bool operator()(bool y, bool x) const { return y & x; }
};

template <class Op> cpu::Cumulative row_of(const char* name, void (*run)(const Launch&)) {
  using cpu::row_loop;
  using cpu::slice_loop;
  Counting::reset();
  (void)Op()(Counting(0.5), Counting(0.25));
  return {
      {name, run, cpu::cumulative_cost},
      {slice_loop<Op, float>, slice_loop<Op, double>, slice_loop<Op, int64_t>, slice_loop<Op, uint64_t>, slice_loop<Op, bool>},
      {row_loop<Op, float>, row_loop<Op, double>, row_loop<Op, int64_t>, row_loop<Op, uint64_t>, row_loop<Op, bool>},
      int(Counting::flops)};
}

// The dtype that whole numbers are added up in.
DType wide(DType dtype) {
  return is_float(dtype) ? dtype : dtype >= DType::u8 && dtype <= DType::u64 ? DType::u64 : DType::i64;
}

template <bool kWide> PyObject* call_cumulative(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  View views[2];
  views[1] = view_or_refuse(args[0]);
  const int axis = axis_or_refuse(args[1], views[1].ndim);
  Result result(kWide ? wide(views[1].dtype) : views[1].dtype, views[1].ndim, views[1].shape, views[0]);
  run_released({&static_cast<const cpu::Cumulative*>(table)->kernel, 1, 1, views, {axis, flag(args[2])}, {}, table},
               views[1].size() * 2);
  return result.hand_out();
}

}  // namespace

void bind_sort(PyObject* module) {
  static const Kernel sort{"sort", kernels::sort, kernels::sort_cost}, argsort{"argsort", kernels::argsort, kernels::sort_cost};
  static const cpu::Cumulative sum = row_of<cpu::Add>("cumulative_sum", cpu::cumulative),
                               prod = row_of<Multiply>("cumulative_prod", cpu::cumulative),
                               most = row_of<cpu::Max>("cumulative_max", cpu::cumulative),
                               least = row_of<cpu::Min>("cumulative_min", cpu::cumulative);
  define(module, "sort", call_sort, &sort);
  define(module, "argsort", call_sort, &argsort);
  define(module, "topk_indices", call_topk, nullptr);
  define(module, "searchsorted", call_searchsorted, nullptr);
  for (const cpu::Cumulative* op : {&sum, &prod}) define(module, op->kernel.name, call_cumulative<true>, op);
  for (const cpu::Cumulative* op : {&most, &least}) define(module, op->kernel.name, call_cumulative<false>, op);
}

}  // namespace pb
