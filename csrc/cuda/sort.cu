// Sorts along an axis: short rows in shared memory, long rows by radix. The first few positions of long rows are selected instead.
#include "families/sort.h"

#include "cuda/merge_sort.cuh"
#include "cuda/radix_sort.cuh"
#include "cuda/select.cuh"

namespace pb::cuda {
namespace {

using kernels::Order;

template <class U> struct KeyOf {
  Order<U> order;
  __device__ U operator()(U item) const { return order.key(item); }
};
template <class U> struct FromRows {
  AxisRows in;
  __device__ const char* row(int64_t r) const { return in.row(r); }
  __device__ U item(const char* source, int64_t i) const { return *reinterpret_cast<const U*>(source + i * in.stride); }
};
template <class U> struct ToElements {
  static constexpr bool kPositions = false;
  AxisRows out;
  __device__ char* row(int64_t r) const { return out.row(r); }
  __device__ void put(char* sink, int64_t i, U item, uint32_t) const { *reinterpret_cast<U*>(sink + i * out.stride) = item; }
};
// Stores the original positions of the first k elements.
template <class U> struct ToPositions {
  static constexpr bool kPositions = true;
  AxisRows out;
  int64_t k;
  __device__ char* row(int64_t r) const { return out.row(r); }
  __device__ void put(char* sink, int64_t i, U, uint32_t position) const {
    if (i < k) *reinterpret_cast<int64_t*>(sink + i * out.stride) = position;
  }
};

// Sorts the rows of a launch, or of one part of it.
template <class U> void sort_part(const merge::Task& task, const Order<U>& order) {
  if (task.n <= merge::kLongest<U>) return merge::start_rows<U>(order, task);
  if (task.positions && select::pays<U>(task.rows, task.n, task.k)) return select::start_rows<U>(order, task);
  const FromRows<U> load{task.in};
  const KeyOf<U> key{order};
  constexpr int kBits = 8 * sizeof(U);
  if (task.positions) radix::sort_rows<U>(load, key, ToPositions<U>{task.out, task.k}, task.rows, task.n, kBits);
  else radix::sort_rows<U>(load, key, ToElements<U>{task.out}, task.rows, task.n, kBits);
}

void sort_axis(const Launch& launch, bool positions, bool nan_last) {
  if (launch.out().size() == 0) return;
  const int axis = int(launch.ints[0]);
  const bool descending = launch.ints[1] != 0;
  View outer[2] = {launch.in(), launch.out()};
  const DType dtype = outer[0].dtype;
  const int64_t n = outer[0].shape[axis], k = outer[1].shape[axis];
  const int64_t along[2] = {take_axis(outer[0], axis), take_axis(outer[1], axis)};
  collapse(outer, 2);
  each_part(outer, 2, [&](View* part) {
    const auto across = [&](int v) {
      const int last = part[v].ndim - 1;
      return last >= 0 && std::abs(part[v].stride[last]) < std::abs(along[v]);
    };
    const merge::Task rows{{part[0], along[0]}, {part[1], along[1]}, part[0].size(), n, k, across(0), across(1), positions};
    switch (item_size(dtype)) {
      case 1: return sort_part<uint8_t>(rows, {dtype, descending, nan_last});
      case 2: return sort_part<uint16_t>(rows, {dtype, descending, nan_last});
      case 4: return sort_part<uint32_t>(rows, {dtype, descending, nan_last});
      default: return sort_part<uint64_t>(rows, {dtype, descending, nan_last});
    }
  });
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void sort(const Launch& launch) { cuda::sort_axis(launch, false, true); }
void argsort(const Launch& launch) { cuda::sort_axis(launch, true, true); }
void first_positions(const Launch& launch) { cuda::sort_axis(launch, true, false); }

}  // namespace pb::kernels
