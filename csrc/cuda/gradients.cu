// Prepares a gradient for kernels that read it by position. A gradient with many axes is copied into a row.
#include "cuda/gradients.cuh"

namespace pb::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(uint32_t n, char* out, const char* in, const __grid_constant__ Walk<2> walk) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset[2];
  walk.offsets(i, offset);
  *reinterpret_cast<T*>(out + offset[0]) = *reinterpret_cast<const T*>(in + offset[1]);
}

template <class T> void gather(View* views) {
  each_part(views, 2, [](View* part) {
    const int64_t n = part[0].size();
    start(gather_kernel<T>, blocks_for(n), kThreads, 0, uint32_t(n), part[0].data, part[1].data, Walk<2>(part));
  });
}

}  // namespace

Gradient::Gradient(View view, Copies& copies) : data(view.data), row(0), column(0), dtype(view.dtype), flat(true) {
  if (view.contiguous()) return;
  if (walks(view)) {
    const int last = view.ndim - 1;
    flat = false;
    columns = Divider(uint32_t(view.shape[last]));
    row = last ? view.stride[0] : 0, column = view.stride[last];
    return;
  }
  View views[2] = {view, view};
  data = views[0].data = copies.take(view.bytes());
  int64_t stride = item_size(dtype);
  for (int d = view.ndim - 1; d >= 0; --d) views[0].stride[d] = stride, stride *= view.shape[d];
  if (item_size(dtype) == 2) gather<uint16_t>(views);
  else if (item_size(dtype) == 4) gather<uint32_t>(views);
  else gather<uint64_t>(views);
}

}  // namespace pb::cuda
