// A product added to what is there: the sum of gradients without an array between.
#include "cpu/blas.h"
#include "cpu/copy.h"
#include "cpu/matmul.h"
#include "cpu/matmul_add.h"
#include "kernels/matmul.h"

namespace pb::cpu {
namespace {

void matmul_add(const Launch& launch) {
  const View &out = launch.out(), &before = launch.in(2);
  if (before.data != out.data) assign(out, before);
  const int64_t m = out.shape[0], n = out.shape[1], k = launch.in(0).shape[1];
  if (m * n * k == 0) return;
  Scratch scratch;
  Matrix a, b;
  as_matrix(readable(rounded(launch.in(0), scratch), out.dtype, scratch), a);
  as_matrix(readable(rounded(launch.in(1), scratch), out.dtype, scratch), b);
  const auto add = [&](auto one) {
    using T = decltype(one);
    gemm(a.transposed, b.transposed, m, n, k, one, reinterpret_cast<const T*>(a.data), a.ld, reinterpret_cast<const T*>(b.data),
         b.ld, one, out.as<T>(), n);
  };
  if (out.dtype == DType::f32) add(1.f);
  else add(1.);
}

void matmul_add_cost(const Launch& launch, Cost& cost) {
  kernels::matmul_cost(launch, cost);
  cost.flops += launch.out().size();
}

const Kernel kMatmulAdd{"matmul_add", matmul_add, matmul_add_cost};

}  // namespace

void fuse_accumulation(Plan& plan) {
  for (int s = 0; s < int(plan.steps.size()); ++s) {
    const Operand product = plan.out(plan.steps[s]);
    const bool wide = product.view.dtype == DType::f32 || product.view.dtype == DType::f64;
    if (plan.steps[s].launch.kernel->run != kernels::matmul || !wide || product.view.ndim != 2 ||
        plan.in(plan.steps[s], 0).view.ndim != 2 || plan.in(plan.steps[s], 1).view.ndim != 2)
      continue;
    const int reader = only_reader(plan, s);
    if (reader < 0 || !is_named(plan.steps[reader], "add")) continue;
    const Step& add = plan.steps[reader];
    const int other = same_view(plan.in(add, 0), product) ? 1 : 0;
    const Operand before = plan.in(add, other);
    if (!same_view(plan.in(add, 1 - other), product) || same_view(before, product) || before.view.number ||
        before.view.dtype != product.view.dtype || !before.view.contiguous() || !follows(plan, s, reader))
      continue;
    Launch launch = plan.steps[s].launch;
    launch.kernel = &kMatmulAdd, launch.inputs = 3;
    replace(plan, s, 2, launch, {plan.out(plan.steps[s + 1]), plan.in(plan.steps[s], 0), plan.in(plan.steps[s], 1), before});
  }
}

}  // namespace pb::cpu
