// Gathers. They move bytes: in units of up to 16 bytes if the rows are contiguous.
#include "cuda/index.cuh"

namespace pb::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) check_kernel(int64_t n, const __grid_constant__ Indices indices) {
  const int64_t i = thread_number();
  if (i < n) (void)indices.position(i);
}

// x with its axis removed: the axes before it and the axes after it.
struct Taken {
  Ratio row, count;  // units per row, number of indices
  int64_t step;      // bytes from row to row along the axis
  Path before, after;
};

template <class U>
__global__ void __launch_bounds__(kThreads)
    take_units(int64_t n, U* out, const char* x, const __grid_constant__ Taken taken, const __grid_constant__ Indices indices) {
  const int64_t i = thread_number();
  if (i >= n) return;
  const int64_t row = taken.row.divide(i), o = taken.count.divide(row);
  const int64_t at = max(indices.position(row - o * taken.count.length), int64_t(0));
  x += taken.before.offset(o) + at * taken.step + taken.after.offset(i - row * taken.row.length);
  out[i] = *reinterpret_cast<const U*>(x);
}

// Each thread writes one unit of the result. `first` is the number of the part's first element in the result.
template <class U>
__global__ void __launch_bounds__(kThreads)
    take_along_kernel(uint32_t n, int64_t first, char* out, const char* indices, DType dtype, const char* x, int64_t step,
                      Bounds bounds, const __grid_constant__ Walk<3> walk) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset[3];
  walk.offsets(i, offset);
  const int64_t where = first + offset[0] / int64_t(sizeof(U));
  const int64_t at = max(bounds.resolve(load_as<int64_t>(dtype, indices + offset[1]), where), int64_t(0));
  *reinterpret_cast<U*>(out + offset[0]) = *reinterpret_cast<const U*>(x + offset[2] + at * step);
}

// Each thread writes one pack of the flat result.
template <class T, int kPack>
__global__ void __launch_bounds__(kThreads)
    one_hot_kernel(int64_t n, T* out, T one, Ratio depth, const __grid_constant__ Indices indices) {
  const int64_t i = thread_number() * kPack;
  if (i >= n) return;
  int64_t row = depth.divide(i), column = i - row * depth.length, hot = indices.position(row);
  struct __align__(sizeof(T) * kPack) Hot {
    T v[kPack];
  } pack;
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    pack.v[k] = column == hot ? one : T(0);
    if (++column == depth.length && i + k + 1 < n) column = 0, hot = indices.position(++row);
  }
  if (i + kPack <= n) return void(*reinterpret_cast<Hot*>(out + i) = pack);
#pragma unroll
  for (int k = 0; k < kPack; ++k)
    if (i + k < n) out[i + k] = pack.v[k];
}

View axes(View v, int first, int count) {
  for (int d = 0; d < count; ++d) v.shape[d] = v.shape[first + d], v.stride[d] = v.stride[first + d];
  v.ndim = count;
  return v;
}

}  // namespace

void check_indices(const View& v, const Indices& indices) {
  start(check_kernel, blocks_for(v.size()), kThreads, 0, v.size(), indices);
}

}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

void take(const Launch& launch) {
  const int axis = int(launch.ints[0]);
  const View &out = launch.out(), &x = launch.in(0), &v = launch.in(1);
  const Indices indices(launch, v, x.shape[axis], Negative(launch.ints[1]));
  if (x.size() == 0 || out.size() == 0) {  // nothing can be read from an empty x
    check_indices(v, indices);
    return assign_number(out, 0);
  }
  const int64_t size = item_size(x.dtype);
  View before = axes(x, 0, axis), after = axes(x, axis + 1, x.ndim - axis - 1);
  int64_t unit = size;
  if (after.contiguous()) {
    uint64_t together = address(out) | address(x) | uint64_t(after.bytes()) | uint64_t(x.stride[axis]);
    for (int d = 0; d < before.ndim; ++d) together |= uint64_t(before.stride[d]);
    unit = unit_of(together);
    after.shape[0] = after.bytes() / unit, after.stride[0] = unit, after.ndim = 1;
  }
  const int64_t rows = before.size() * v.size(), row = after.size();
  const Taken taken{Ratio(row, rows * row), Ratio(v.size(), rows), x.stride[axis], Path(before), Path(after)};
  visit_unit(unit, [&](auto u) {
    using U = decltype(u);
    start(take_units<U>, blocks_for(rows * row), kThreads, 0, rows * row, out.as<U>(), x.data, taken, indices);
  });
}

void take_along_axis(const Launch& launch) {
  const int axis = int(launch.ints[0]);
  const View &out = launch.out(), &x = launch.in(0), &v = launch.in(1);
  const Indices indices(launch, v, x.shape[axis], Negative::from_end);
  if (x.size() == 0 || out.size() == 0) {
    check_indices(v, indices);
    return assign_number(out, 0);
  }
  View views[3] = {out, v, x};
  views[2].shape[axis] = v.shape[axis], views[2].stride[axis] = 0;
  collapse(views, 3);
  each_part(views, 3, [&](View* part) {
    const int64_t n = part[0].size(), first = (part[0].data - out.data) / item_size(out.dtype);
    visit_unit(item_size(out.dtype), [&](auto u) {
      using U = decltype(u);
      if constexpr (sizeof(U) <= 8)
        start(take_along_kernel<U>, blocks_for(n), kThreads, 0, uint32_t(n), first, part[0].data, part[1].data, v.dtype,
              part[2].data, x.stride[axis], indices.bounds, Walk<3>(part));
    });
  });
}

void one_hot(const Launch& launch) {
  const View &out = launch.out(), &v = launch.in();
  const int64_t n = out.size(), depth = out.shape[out.ndim - 1];
  const Indices indices(launch, v, depth, Negative::refused);
  if (n == 0) return check_indices(v, indices);
  visit(out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using U = std::conditional_t<
        sizeof(T) == 1, uint8_t,
        std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
    const T one = T(1);
    U bits;
    std::memcpy(&bits, &one, sizeof bits);
    constexpr int kPack = std::min<int>(16 / sizeof(T), 4);
    if (address(out) % 16 == 0)
      return start(one_hot_kernel<U, kPack>, blocks_for((n + kPack - 1) / kPack), kThreads, 0, n, out.as<U>(), bits,
                   Ratio(depth, n), indices);
    start(one_hot_kernel<U, 1>, blocks_for(n), kThreads, 0, n, out.as<U>(), bits, Ratio(depth, n), indices);
  });
}

}  // namespace pb::kernels
