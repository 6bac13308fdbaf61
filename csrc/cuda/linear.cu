// The linear layer: one launch forward, and one launch backward unless the layer is large.
#include "cuda/copy.cuh"
#include "cuda/gemm.h"
#include "families/executed.h"
#include "families/matmul.h"
#include "launch/check.h"

namespace pb::kernels {
namespace {

using cuda::Product;

// Returns v (…, n) as (rows, n), a copy if the leading axes are not evenly spaced.
View rows_of(const View& v, cuda::Scratch& scratch) {
  View lead = v, rows = v;
  lead.ndim = v.ndim - 1;
  const int64_t count = lead.size(), n = v.shape[v.ndim - 1], size = item_size(v.dtype);
  collapse(&lead, 1);
  rows.ndim = 2;
  rows.shape[0] = count, rows.shape[1] = n;
  rows.stride[0] = lead.ndim ? lead.stride[0] : n * size, rows.stride[1] = v.stride[v.ndim - 1];
  if (lead.ndim <= 1 || count == 0 || n == 0) return rows;
  const View copy = contiguous_view(scratch.take_bytes(size_t(v.bytes())), v.dtype, v);
  cuda::assign(copy, v);
  rows.data = copy.data, rows.stride[0] = n * size, rows.stride[1] = size;
  return rows;
}

cuda::Factor rows_outer(const View& v) { return {v.data, v.stride[0], v.stride[1]}; }
cuda::Factor columns_outer(const View& v) { return {v.data, v.stride[1], v.stride[0]}; }

int64_t row_count(const View& v) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < v.ndim; ++d) rows *= v.shape[d];
  return rows;
}

// Returns the product of a layer without its factors.
Product product_of(const Launch& launch) {
  const View &out = launch.out(), &w = launch.in(1);
  Product p(out.dtype, row_count(out), w.shape[0], w.shape[1], out.data);
  if (launch.inputs == 3) p.bias = launch.in(2).data, p.bias_step = launch.in(2).stride[0];
  p.activation = int(launch.ints[0]);
  return p;
}

// The parts of a pullback: products[first] to products[end - 1], without their factors. If `apart`, a separate launch comes first,
// which pulls g back through the activation and sums its columns. Otherwise the products do both while they read g. Products by
// cuBLASLt cannot do that, nor can products that round float32, because the sums are those of gz before it is rounded.
struct Parts {
  DType dtype;
  int64_t m, n, k;
  int activation;
  char* sums;
  bool apart;
  Product products[2];
  int first = 1, end = 1;

  explicit Parts(const Launch& launch)
      : dtype(launch.in(2).dtype),
        m(row_count(launch.in(0))),
        n(launch.in(2).shape[0]),
        k(launch.in(2).shape[1]),
        activation(int(launch.ints[0])),
        sums(launch.out(2).size() ? launch.out(2).data : nullptr),
        apart((activation || sums) && ((dtype == DType::f32 && precision() != Precision::exact) || cuda::is_large(m, n, k) ||
                                       cuda::is_large(n, k, m) || cuda::is_large(m, k, n))),
        products{Product(dtype, m, k, n, launch.out(0).data), Product(dtype, n, k, m, launch.out(1).data)} {
    for (int i = 0; i < 2; ++i) products[i].pulled = apart ? 0 : activation, products[i].adds = adds_to(launch, i);
    if (!apart) products[1].sums = sums;
    if (launch.out(0).size()) first = 0;
    if (launch.out(1).size() || products[1].sums) end = 2;
    if (!launch.out(1).size()) products[1].n = 0;
  }
};

}  // namespace

void linear(const Launch& launch) {
  const View& x = launch.in(0);
  PB_CHECK_EQ(x.shape[x.ndim - 1], launch.in(1).shape[1]);
  if (launch.out().size() == 0) return;
  cuda::Scratch scratch;
  Product p = product_of(launch);
  p.a = rows_outer(rows_of(launch.in(0), scratch)), p.b = rows_outer(launch.in(1));
  cuda::multiply(&p, 1);
}

void executed_linear(const Launch& launch, Counts& work) {
  if (launch.out().size() == 0) return;
  const Product p = product_of(launch);
  work = cuda::work_of(&p, 1);
}

void linear_pullback(const Launch& launch) {
  Parts parts(launch);
  cuda::Scratch scratch;
  View g = rows_of(launch.in(0), scratch);
  const View y = parts.activation ? rows_of(launch.in(3), scratch) : g;
  if (parts.apart) {
    const int64_t size = item_size(g.dtype);
    char* gz = parts.activation ? static_cast<char*>(scratch.take_bytes(size_t(g.size() * size))) : nullptr;
    cuda::pull_columns(g, y, parts.activation, gz, parts.sums);
    if (gz) g.data = gz, g.stride[0] = parts.n * size, g.stride[1] = size;
  }
  Product &gx = parts.products[0], &gw = parts.products[1];
  gx.a = rows_outer(g), gx.y = rows_outer(y), gx.b = columns_outer(launch.in(2));
  gw.a = columns_outer(g), gw.y = columns_outer(y);
  gw.b = gw.n ? columns_outer(rows_of(launch.in(1), scratch)) : gw.a;
  if (parts.end > parts.first) cuda::multiply(parts.products + parts.first, parts.end - parts.first);
}

void executed_linear_pullback(const Launch& launch, Counts& work) {
  const Parts parts(launch);
  work = {};
  if (parts.apart) work = cuda::work_of_columns(parts.m, parts.n, parts.activation, parts.sums);
  if (parts.end > parts.first) work.add(cuda::work_of(parts.products + parts.first, parts.end - parts.first));
}

}  // namespace pb::kernels
