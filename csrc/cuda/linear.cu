// The linear layer: one launch forward, and one launch backward unless the layer is large.
#include "cuda/copy.cuh"
#include "cuda/gemm.h"
#include "families/executed.h"
#include "families/matmul.h"
#include "launch/check.h"

namespace pb::kernels {
namespace {

using cuda::Product;

// Returns v (…, n) as (rows, n), a copy if the leading axes are not evenly spaced. Without scratch memory, the copy has no data.
View rows_of(const View& v, cuda::Scratch* scratch) {
  View lead = v, rows = v;
  lead.ndim = v.ndim - 1;
  const int64_t count = lead.size(), n = v.shape[v.ndim - 1], size = item_size(v.dtype);
  collapse(&lead, 1);
  rows.ndim = 2;
  rows.shape[0] = count, rows.shape[1] = n;
  rows.stride[0] = lead.ndim ? lead.stride[0] : n * size, rows.stride[1] = v.stride[v.ndim - 1];
  if (lead.ndim <= 1 || count == 0 || n == 0) return rows;
  rows.data = nullptr, rows.stride[0] = n * size, rows.stride[1] = size;
  if (scratch) {
    const View copy = contiguous_view(scratch->take_bytes(size_t(v.bytes())), v.dtype, v);
    cuda::assign(copy, v);
    rows.data = copy.data;
  }
  return rows;
}

cuda::Factor rows_outer(const View& v) { return {v.data, v.stride[0], v.stride[1]}; }
cuda::Factor columns_outer(const View& v) { return {v.data, v.stride[1], v.stride[0]}; }

int64_t row_count(const View& v) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < v.ndim; ++d) rows *= v.shape[d];
  return rows;
}

Product product_of(const Launch& launch, cuda::Scratch* scratch) {
  const View &out = launch.out(), &w = launch.in(1);
  Product p(out.dtype, row_count(out), w.shape[0], w.shape[1], out.data);
  p.a = rows_outer(rows_of(launch.in(0), scratch)), p.b = rows_outer(w);
  if (launch.inputs == 3) p.bias = launch.in(2).data, p.bias_step = launch.in(2).stride[0];
  p.activation = int(launch.ints[0]);
  return p;
}

// The products of a pullback, of which those from `first` to `end` - 1 are needed: gx = gz @ w and gw = gz.T @ x. gz is the
// pullback of g through the activation, and gb is the sum of its rows.
//
// If `apart`, a separate launch comes first, which computes gz and gb. Otherwise the products do both while they read g. Products
// by cuBLASLt cannot do that, nor can products that round float32, because the sums are those of gz before it is rounded. Large
// ones of float32 would have to use smaller tiles.
struct Pullback {
  DType dtype;
  int64_t m, n, k;
  int activation;
  char* sums;
  bool apart;
  Product products[2];
  int first = 1, end = 1;

  explicit Pullback(const Launch& launch)
      : dtype(launch.in(2).dtype),
        m(row_count(launch.in(0))),
        n(launch.in(2).shape[0]),
        k(launch.in(2).shape[1]),
        activation(int(launch.ints[0])),
        sums(launch.out(2).size() ? launch.out(2).data : nullptr),
        apart((activation || sums) && needs_launch()),
        products{Product(dtype, m, k, n, launch.out(0).data), Product(dtype, n, k, m, launch.out(1).data)} {
    for (int i = 0; i < 2; ++i) products[i].pulled = apart ? 0 : activation, products[i].adds = adds_to(launch, i);
    if (!apart) products[1].sums = sums;
    if (launch.out(0).size()) first = 0;
    if (launch.out(1).size() || products[1].sums) end = 2;
    if (!launch.out(1).size()) products[1].n = 0;
  }

  // g and y: (rows, n). gz: the result of the separate launch, if there is one.
  void read(const Launch& launch, const View& g, const View& y, const View& gz, cuda::Scratch* scratch) {
    Product &gx = products[0], &gw = products[1];
    const View& a = apart && activation ? gz : g;
    gx.a = rows_outer(a), gx.y = rows_outer(y), gx.b = columns_outer(launch.in(2));
    gw.a = columns_outer(a), gw.y = columns_outer(y);
    gw.b = gw.n ? columns_outer(rows_of(launch.in(1), scratch)) : gw.a;
  }
  int count() const { return end - first; }

 private:
  bool needs_launch() const {
    if (cuda::is_large(dtype, precision(), n, k, m) || cuda::is_large(dtype, precision(), m, k, n)) return true;
    if (dtype != DType::f32) return false;
    const bool rounds = precision() > Precision::tf32 || cuda::by_tensor_cores(dtype, precision(), m * n * k);
    return rounds || cuda::is_worth_a_launch(m, n, k);
  }
};

}  // namespace

void linear(const Launch& launch) {
  const View& x = launch.in(0);
  PB_CHECK_EQ(x.shape[x.ndim - 1], launch.in(1).shape[1]);
  if (launch.out().size() == 0) return;
  cuda::Scratch scratch;
  const Product p = product_of(launch, &scratch);
  cuda::multiply(&p, 1);
}

void executed_linear(const Launch& launch, Counts& work) {
  if (launch.out().size() == 0) return;
  const Product p = product_of(launch, nullptr);
  work = cuda::work_of(&p, 1);
}

void linear_pullback(const Launch& launch) {
  Pullback pullback(launch);
  cuda::Scratch scratch;
  const View g = rows_of(launch.in(0), &scratch), y = pullback.activation ? rows_of(launch.in(3), &scratch) : g;
  View gz = g;
  if (pullback.apart) {
    if (pullback.activation) gz = contiguous_view(scratch.take_bytes(size_t(g.bytes())), g.dtype, g);
    cuda::pull_back_columns(g, y, pullback.activation, pullback.activation ? gz.data : nullptr, pullback.sums);
  }
  pullback.read(launch, g, y, gz, &scratch);
  if (pullback.count() > 0) cuda::multiply(pullback.products + pullback.first, pullback.count());
}

void executed_linear_pullback(const Launch& launch, Counts& work) {
  Pullback pullback(launch);
  const View g = rows_of(launch.in(0), nullptr), y = pullback.activation ? rows_of(launch.in(3), nullptr) : g;
  pullback.read(launch, g, y, contiguous_view(nullptr, g.dtype, g), nullptr);
  work = {};
  if (pullback.apart) work = cuda::work_of_columns(pullback.m, pullback.n, pullback.activation, pullback.sums);
  if (pullback.count() > 0) work.add(cuda::work_of(pullback.products + pullback.first, pullback.count()));
}

}  // namespace pb::kernels
