// Constraints along axes, applied to the weights that an update has written.
#include "families/projection.h"

#include <vector>

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

using namespace kernels;

// Returns a flat view of a contiguous array of `size` elements, with null data for None.
View tensor_of(PyObject* object, int64_t size) {
  if (object == Py_None) return flat_view(nullptr, DType::f32, size);
  const View v = view_or_refuse(object);
  if (!v.contiguous()) throw Refused{"not contiguous"};
  if (v.size() != size) throw Refused{"a tensor of another size than its weights"};
  return flat_view(v.data, v.dtype, size);
}

// Returns the weights as a matrix (outer, length, inner).
View vectors_of(PyObject* object, int64_t length, int64_t inner) {
  View v = view_or_refuse(object);
  if (!v.contiguous() || !is_float(v.dtype)) throw Refused{"weights that are not contiguous or not floating"};
  if (length < 1 || inner < 1 || v.size() == 0 || v.size() % (length * inner) != 0) throw Refused{"weights of other vectors"};
  const int64_t shape[3] = {v.size() / (length * inner), length, inner};
  v.ndim = 3;
  for (int d = 0; d < 3; ++d) v.shape[d] = shape[d];
  return contiguous_view(v.data, v.dtype, v);
}

// project(limit, entries): projects vectors of weights in place. limit: 0 for a largest norm, 1 for the norm 1, 2 for distributions.
// entries: for each tensor (length, inner, most, weights, low, delta, average, before, old average, mask, sets), where the weights are
// vectors of `length` elements that lie `inner` elements apart; most is the largest norm; the tensors, which may be None, are as in
// families/projection.h.
PyObject* call_project(const void*, PyObject* const* args, Py_ssize_t count) {
  static const Kernel kernel{"project", project, project_cost, executed_project};
  constexpr int kFields = 11, kOperands = kProjectedOutputs + kProjectedInputs;
  expect_count(count, 2);
  const int64_t limit = to_int(args[0]);
  if (limit < 0 || limit > int64_t(Limit::simplex)) throw Refused{"no such limit"};
  const Items given(args[1]);
  const int entries = int(given.size());
  std::vector<View> operands(size_t(kOperands) * entries);
  std::vector<double> numbers(entries);
  int64_t elements = 0;
  for (int t = 0; t < entries; ++t) {
    const Items fields(given[t]);
    if (fields.size() != kFields) throw Refused{"an entry of other fields"};
    const auto operand = [&](int k) -> View& { return operands[size_t(k) * entries + t]; };
    const View weights = operand(0) = vectors_of(fields[3], to_int(fields[0]), to_int(fields[1]));
    const int64_t size = weights.size();
    const DType wide = storage_of(compute_type(weights.dtype));
    for (int k = 1; k < kOperands - 2; ++k) operand(k) = tensor_of(fields[3 + k], size);
    const auto expect = [&](int k, DType dtype) {
      if (operand(k).data && operand(k).dtype != dtype) throw Refused{"a tensor of another dtype than its weights"};
    };
    const View &low = operand(1), &delta = operand(2), &average = operand(3), &before = operand(4), &old = operand(5);
    if (low.data && (weights.dtype != DType::f32 || item_size(low.dtype) != 2 || !is_float(low.dtype)))
      throw Refused{"a copy that is not of half precision"};
    expect(2, weights.dtype), expect(4, weights.dtype), expect(3, wide), expect(5, wide);
    if (operand(6).data && item_size(operand(6).dtype) != 1) throw Refused{"a mask that is not of bytes"};
    if ((delta.data && !before.data) || (average.data && !old.data)) throw Refused{"a tensor without its value before"};
    View& sets = operand(7) = view_or_refuse(fields[10]);
    if (sets.dtype != DType::f64 || sets.ndim != 2 || sets.shape[1] != kSetSize || !sets.contiguous() || sets.shape[0] < 1 ||
        size % sets.shape[0] != 0)
      throw Refused{"not the sets of a tensor"};
    numbers[t] = to_real(fields[2]);
    operand(8) = flat_view(&numbers[t], DType::f64, 1);
    operand(8).number = true;
    elements += size;
  }
  Launch launch{&kernel, kProjectedOutputs * entries, kProjectedInputs * entries, operands.data(), {entries, limit}, {},
                nullptr};
  run_released(launch, elements * 8);
  Py_RETURN_NONE;
}

}  // namespace

void bind_projection(PyObject* module) { define(module, "project", call_project, nullptr); }

}  // namespace pb
