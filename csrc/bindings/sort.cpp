// Binds searches in the order of elements: topk_indices, searchsorted.
#include <algorithm>

#include "bindings/tables.h"
#include "bindings/result.h"
#include "families/sort.h"

namespace pb {
namespace {

constexpr int64_t kSortWork = 16;  // the work of sorting one element, in flops

View row_or_refuse(PyObject* object) {
  const View x = view_or_refuse(object);
  for (int d = 0; d < x.ndim; ++d)
    if (x.shape[d] >= kernels::kMaxRow) throw Refused{"an axis of more than 2^32 elements"};
  return x;
}

// topk_indices(x, k, axis, largest) -> the indices of the k best elements, best first. Equal elements stay in order; NaN is the largest.
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
  run_released({&kernel, 1, 1, views, {axis, to_bool(args[3]), k}, {}, nullptr}, views[1].size() * 4);
  return result.hand_out();
}

// searchsorted(sorted, values, right)
PyObject* call_searchsorted(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"searchsorted", kernels::searchsorted, kernels::sort_cost};
  expect_count(count, 3);
  View views[3];
  views[1] = view_or_refuse(args[0]);
  views[2] = view_or_refuse(args[1]);
  if (views[1].ndim != 1) throw Refused{"not one sorted axis"};
  if (views[1].dtype != views[2].dtype) throw Refused{"arrays of different dtypes"};
  Result result(DType::i64, views[2].ndim, views[2].shape, views[0]);
  run_released({&kernel, 1, 2, views, {to_bool(args[2])}, {}, nullptr}, views[2].size() * kSortWork + views[1].size());
  return result.hand_out();
}

}  // namespace

void bind_sort(PyObject* module) {
  define(module, "topk_indices", call_topk, nullptr);
  define(module, "searchsorted", call_searchsorted, nullptr);
}

}  // namespace pb
