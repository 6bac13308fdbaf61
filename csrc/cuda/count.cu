// Divides the value of each row by the row's number of labels that are not ignored. The blocks of a row each count some of its
// labels, and the last of them divides.
#include "cuda/axis_rows.cuh"
#include "cuda/operand.cuh"
#include "cuda/fold.cuh"
#include "families/rows.h"
#include "math/scalar.h"

namespace pb::cuda {
namespace {

constexpr int64_t kLabelsOfBlock = 4096;

struct Adds {
  template <class A> static __device__ A combine(A a, A b) { return a + b; }
};

struct Counting {
  AxisRows x, labels;  // one value per row, and n labels per row
  DType dtype;         // of the labels
  int64_t n, ignored;
  unsigned parts;    // blocks that share a row, at most kThreads; there are several only for a single row
  int64_t* partial;  // their counts
  unsigned* ticket;
};

// X: the type of the values, which is T or the type that T is computed in.
template <class T, class X>
__global__ void __launch_bounds__(kThreads) divide_by_count_kernel(T* out, const __grid_constant__ Counting f) {
  const unsigned row = blockIdx.x / f.parts, part = blockIdx.x % f.parts;
  const char* labels = f.labels.row(row);
  int64_t count = 0;
  for (int64_t i = int64_t(part) * kThreads + threadIdx.x; i < f.n; i += int64_t(f.parts) * kThreads)
    count += convert_from<int64_t>(f.dtype, labels + i * f.labels.stride) != f.ignored;
  count = fold_block<Adds>(count);
  if (f.parts > 1) {
    if (threadIdx.x == 0) f.partial[part] = count;
    if (!last_to_arrive(f.ticket, f.parts)) return;
    count = fold_block<Adds>(threadIdx.x < f.parts ? read_fresh(f.partial + threadIdx.x) : int64_t{0});
  }
  if (threadIdx.x != 0) return;
  using C = acc_t<T>;
  out[row] = T(C(*reinterpret_cast<const X*>(f.x.row(row))) / C(count));
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

void divide_by_count(const Launch& launch) {
  const View &out = launch.out(), &x = launch.in(0);
  View labels = launch.in(1);
  const int64_t n = row_length(labels), rows = out.size();
  const DType dtype = labels.dtype;
  const int64_t along = take_axis(labels, labels.ndim - 1);
  Counting f{AxisRows(x, 0), AxisRows(labels, along), dtype, n, launch.ints[0], 1, nullptr, nullptr};
  Scratch scratch;
  if (rows == 1 && n > kLabelsOfBlock) {
    f.parts = unsigned(std::min<int64_t>(kThreads, (n + kLabelsOfBlock - 1) / kLabelsOfBlock));
    f.partial = scratch.take<int64_t>(f.parts), f.ticket = tickets();
  }
  visit(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<T>) {
      const auto run = [&](auto* kernel) { start(kernel, blocks_for(rows * f.parts, 1), dim3(kThreads), 0, out.as<T>(), f); };
      if (x.dtype == out.dtype) run(divide_by_count_kernel<T, T>);
      else run(divide_by_count_kernel<T, acc_t<T>>);
    }
  });
}

}  // namespace pb::kernels
