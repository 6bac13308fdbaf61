// Binds the segment ops, which combine the rows of data that have the same id. Each is a scatter with one target row per segment.
#include "bindings/tables.h"
#include "bindings/indexed.h"
#include "families/scatter.h"

namespace pb {
namespace {

// segment_<how>(data, ids, num_segments)
PyObject* call_segment(const void* table, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  View views[3];
  views[1] = indices_or_refuse(args[1]);
  views[2] = view_or_refuse(args[0]);
  if (views[1].ndim != 1 || views[2].ndim < 1 || views[1].shape[0] != views[2].shape[0])
    throw Refused{"one id for each row of data"};
  int64_t shape[kMaxDims];
  for (int d = 1; d < views[2].ndim; ++d) shape[d] = views[2].shape[d];
  shape[0] = to_length(args[2]);
  if (shape[0] < 0) throw Refused{"a negative number of segments"};
  Result result(views[2].dtype, views[2].ndim, shape, views[0]);
  run_indexed({&static_cast<const kernels::Scatter*>(table)->kernel, 1, 2, views, {0}, {}, table},
              views[0].size() + views[2].size());
  return result.hand_out();
}

}  // namespace

void bind_segment(PyObject* module) {
  for (const kernels::Scatter* op : kernels::scatters())
    if (op->how == kernels::Scattering::segments) define(module, op->kernel, call_segment, op);
}

}  // namespace pb
