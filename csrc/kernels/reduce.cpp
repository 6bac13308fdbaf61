// Types, shapes and costs of reductions.
#include "kernels/reduce.h"

#include <algorithm>

namespace pb::kernels {
namespace {

void append(View& v, int64_t length, int64_t stride) {
  v.shape[v.ndim] = length;
  v.stride[v.ndim++] = stride;
}

}  // namespace

Compute read_as(const Reduction& op, DType x) { return op.adds && x == DType::b8 ? Compute::i64 : compute_type(x); }

DType result_dtype(const Reduction& op, DType x) {
  if (op.predicate) return DType::b8;
  if (!op.adds || is_float(x)) return x;
  return x >= DType::u8 && x <= DType::u64 ? DType::u64 : DType::i64;
}

Matrix matrix_of(const View& x, int64_t mask) {
  Matrix m;
  for (View* part : {&m.outer, &m.reduced, &m.inner}) part->data = x.data, part->dtype = x.dtype, part->ndim = 0;
  int end = x.ndim;
  while (end > 0 && (x.shape[end - 1] == 1 || !(mask >> (end - 1) & 1))) --end;
  for (int d = 0; d < x.ndim; ++d)
    if (x.shape[d] != 1) append(d >= end ? m.inner : mask >> d & 1 ? m.reduced : m.outer, x.shape[d], x.stride[d]);
  m.cells = m.outer.size(), m.rows = m.reduced.size(), m.width = m.inner.size();
  for (View* part : {&m.outer, &m.reduced, &m.inner}) collapse(part, 1);
  return m;
}

void reduce_cost(const Launch& launch, Cost& cost) {
  const auto& op = *static_cast<const Reduction*>(launch.table);
  const int64_t n = launch.in().size(), results = launch.out().size();
  cost.add(op.counts, std::max<int64_t>(0, n - results));
  if (op.divides && n != results) cost.special = results;  // a cell of one element is not divided
}

void arg_reduce_cost(const Launch&, Cost&) {}

}  // namespace pb::kernels
