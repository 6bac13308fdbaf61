// Binary search: each thread searches for one value, by branch-free halving as on the CPU.
#include "cuda/axis_rows.cuh"
#include "families/sort.h"

namespace pb::cuda {
namespace {

// Orders NaN after everything else, as sort does.
template <class C> __device__ bool less(C a, C b) { return a < b || (b != b && a == a); }

// True if the element comes before v: it is less than v, or with `right` not greater.
template <class C> __device__ bool before(C element, C v, bool right) { return right ? !less(v, element) : less(element, v); }

struct Sorted {
  const char* data;
  DType dtype;
  int64_t n, stride;
  template <class C> __device__ C at(int64_t i) const { return load_as<C>(dtype, data + i * stride); }
};

template <class C>
__global__ void __launch_bounds__(kThreads)
    search(Sorted sorted, bool right, uint32_t count, const char* values, const __grid_constant__ Walk<1> walk, int64_t* out) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  int64_t offset[1], first = 0;
  walk.offsets(i, offset);
  const C v = load_as<C>(sorted.dtype, values + offset[0]);
  for (int64_t length = sorted.n; length > 1; length -= length / 2)
    first += before(sorted.at<C>(first + length / 2 - 1), v, right) ? length / 2 : 0;
  out[i] = first + (sorted.n > 0 && before(sorted.at<C>(first), v, right));
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void searchsorted(const Launch& launch) {
  using namespace cuda;
  const View& in = launch.in(0);
  const Sorted sorted{in.data, in.dtype, in.shape[0], in.stride[0]};
  View values = launch.in(1);
  int64_t* out = launch.out().as<int64_t>();
  collapse(&values, 1);
  each_part(&values, 1, [&](View* part) {  // parts split the outermost axis, and come in order
    const int64_t count = part->size();
    visit(compute_type(in.dtype), [&](auto t) {
      start(search<typename decltype(t)::type>, blocks_for(count), kThreads, 0, sorted, launch.ints[0] != 0, uint32_t(count),
            part->data, Walk<1>(part), out);
    });
    out += count;
  });
}

}  // namespace pb::kernels
