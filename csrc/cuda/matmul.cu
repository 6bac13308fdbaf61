// Batched matrix products.
#include <cstring>

#include "cuda/gemm.h"
#include "families/executed.h"
#include "families/matmul.h"
#include "launch/check.h"

namespace pb::kernels {
namespace {

// Returns the strides of v from matrix to matrix, broadcast to the batch axes of the result.
View steps_of(const View& v, const View& out) {
  View steps = v;
  steps.ndim = v.ndim - 2;
  broadcast_to(steps, out.ndim - 2, out.shape);
  return steps;
}

// If b is the same for the whole last axis of the batch, and the rows of a continue evenly along that axis, the matrices of a along
// it become one matrix.
void merge_rows(cuda::Product& p) {
  const int last = p.batch[0].ndim - 1;
  if (last < 0 || p.batch[1].stride[last] != 0) return;
  const int64_t step = p.batch[0].stride[last];
  if (p.m == 1) p.a.outer = step;
  else if (step != p.m * p.a.outer) return;
  p.m *= p.batch[0].shape[last];
  p.batch[0].ndim = p.batch[1].ndim = last;
}

cuda::Product product_of(const Launch& launch) {
  const View &out = launch.out(), &a = launch.in(0), &b = launch.in(1);
  const int row = a.ndim - 2, column = b.ndim - 1;
  cuda::Product p(out.dtype, a.shape[row], b.shape[column], a.shape[row + 1], out.data);
  p.a = {a.data, a.stride[row], a.stride[row + 1]};
  p.b = {b.data, b.stride[column], b.stride[column - 1]};
  p.batch[0] = steps_of(a, out), p.batch[1] = steps_of(b, out);
  collapse(p.batch, 2);
  p.adds = adds_to(launch, 0);
  merge_rows(p);
  return p;
}

}  // namespace

void matmul(const Launch& launch) {
  const View &a = launch.in(0), &b = launch.in(1);
  PB_CHECK_EQ(a.shape[a.ndim - 1], b.shape[b.ndim - 2]);
  if (launch.out().size() == 0) return;
  const cuda::Product p = product_of(launch);
  cuda::multiply(&p, 1);
}

void executed_matmul(const Launch& launch, Counts& work) {
  if (launch.out().size() == 0) return;
  const cuda::Product p = product_of(launch);
  work = cuda::work_of(&p, 1);
}

}  // namespace pb::kernels
