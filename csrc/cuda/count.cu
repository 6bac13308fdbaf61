// Divides the value of each row by the row's number of labels that are not ignored. One block per row; each thread counts every
// 256th label.
#include "cuda/axis_rows.cuh"
#include "cuda/fold.cuh"
#include "families/rows.h"
#include "math/scalar.h"

namespace pb::cuda {
namespace {

struct Adds {
  template <class A> static __device__ A combine(A a, A b) { return a + b; }
};

// x: one value per row; labels: n per row. x and labels may differ in dtype.
template <class T>
__global__ void __launch_bounds__(kThreads)
    divide_by_count_kernel(T* out, AxisRows x, AxisRows labels, DType dtype, int64_t n, int64_t ignored) {
  const char* row = labels.row(blockIdx.x);
  int64_t count = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) count += convert_from<int64_t>(dtype, row + i * labels.stride) != ignored;
  count = fold_block<Adds>(count);
  if (threadIdx.x != 0) return;
  using C = acc_t<T>;
  out[blockIdx.x] = T(C(*reinterpret_cast<const T*>(x.row(blockIdx.x))) / C(count));
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

void divide_by_count(const Launch& launch) {
  const View& out = launch.out();
  View labels = launch.in(1);
  const int64_t n = row_length(labels);
  const DType dtype = labels.dtype;
  const int64_t along = take_axis(labels, labels.ndim - 1);
  visit(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<T>)
      start(divide_by_count_kernel<T>, blocks_for(out.size(), 1), dim3(kThreads), 0, out.as<T>(), AxisRows(launch.in(0), 0),
            AxisRows(labels, along), dtype, n, launch.ints[0]);
  });
}

}  // namespace pb::kernels
