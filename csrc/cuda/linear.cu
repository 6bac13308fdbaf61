// The linear layer: one launch forward, one back unless it is large.
#include "cuda/copy.cuh"
#include "cuda/gemm.h"
#include "kernels/matmul.h"

namespace pb::kernels {
namespace {

using cuda::Product;

// v (…, n) as (rows, n); copied where its leading axes are not evenly spaced.
View rows_of(const View& v, cuda::Scratch& scratch) {
  View lead = v, rows = v;
  lead.ndim = v.ndim - 1;
  const int64_t count = lead.size(), n = v.shape[v.ndim - 1], size = item_size(v.dtype);
  collapse(&lead, 1);
  rows.ndim = 2;
  rows.shape[0] = count, rows.shape[1] = n;
  rows.stride[0] = lead.ndim ? lead.stride[0] : n * size, rows.stride[1] = v.stride[v.ndim - 1];
  if (lead.ndim <= 1 || count == 0 || n == 0) return rows;
  const View copy = cuda::contiguous_view(scratch.take_bytes(size_t(v.bytes())), v.dtype, v);
  cuda::assign(copy, v);
  rows.data = copy.data, rows.stride[0] = n * size, rows.stride[1] = size;
  return rows;
}

cuda::Factor rows_outer(const View& v) { return {v.data, v.stride[0], v.stride[1]}; }
cuda::Factor columns_outer(const View& v) { return {v.data, v.stride[1], v.stride[0]}; }

}  // namespace

void linear(const Launch& launch) {
  const View &out = launch.out(), &w = launch.in(1);
  if (out.size() == 0) return;
  cuda::Scratch scratch;
  const View x = rows_of(launch.in(0), scratch);
  Product p(out.dtype, x.shape[0], w.shape[0], x.shape[1], out.data);
  p.a = rows_outer(x), p.b = rows_outer(w);
  if (launch.inputs == 3) p.bias = launch.in(2).data, p.bias_step = launch.in(2).stride[0];
  p.activation = int(launch.ints[0]);
  cuda::multiply(&p, 1);
}

void linear_pullback(const Launch& launch) {
  const View &gx = launch.out(0), &gw = launch.out(1), &gb = launch.out(2), &w = launch.in(2);
  const DType dtype = w.dtype;
  int activation = int(launch.ints[0]);
  cuda::Scratch scratch;
  View g = rows_of(launch.in(0), scratch);
  const View y = activation ? rows_of(launch.in(3), scratch) : g;
  const int64_t m = g.shape[0], n = g.shape[1], k = w.shape[1];
  char* sums = gb.size() ? gb.data : nullptr;

  // The products can pull back and sum as they read, but not a library's, nor those that round float32 as they read it.
  const bool apart = (dtype == DType::f32 && cuda::by_tensor_cores(dtype)) || cuda::is_large(m, n, k) ||
                     cuda::is_large(n, k, m) || cuda::is_large(m, k, n);
  if (apart && (activation || sums)) {
    char* gz = activation ? static_cast<char*>(scratch.take_bytes(size_t(m * n * item_size(dtype)))) : nullptr;
    cuda::pull_columns(g, y, activation, gz, sums);
    if (gz) g.data = gz, g.stride[0] = n * item_size(dtype), g.stride[1] = item_size(dtype);
    activation = 0, sums = nullptr;
  }

  Product products[2] = {Product(dtype, m, k, n, gx.data), Product(dtype, n, k, m, gw.data)};
  int first = 1, end = 1;
  if (gx.size()) {
    Product& p = products[--first];
    p.a = rows_outer(g), p.b = columns_outer(w);
    p.y = rows_outer(y), p.pulled = activation, p.adds = adds_to(launch, 0);
  }
  if (gw.size() || sums) {
    Product& p = products[end++];
    p.a = columns_outer(g), p.y = columns_outer(y), p.pulled = activation;
    p.sums = sums, p.adds = adds_to(launch, 1);
    if (gw.size()) {
      const View x = rows_of(launch.in(1), scratch);
      p.b = columns_outer(x);
    } else {
      p.n = 0, p.b = p.a;
    }
  }
  if (end > first) cuda::multiply(products + first, end - first);
}

}  // namespace pb::kernels
