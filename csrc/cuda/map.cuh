// The elementwise kernels. Each thread computes a pack of four elements if the operands are contiguous, aligned and computed with
// in float; otherwise each thread computes one element.
#pragma once
#include "cuda/operand.cuh"
#include "families/elementwise.h"

namespace pb::cuda {

using kernels::kMaxArity;

// An operand: an array, or a number passed by value.
struct Slot {
  char* data = nullptr;
  DType dtype = DType::f32;
  bool number = false;
  double bits = 0;  // the number's value in the compute type

  Slot() = default;
  explicit Slot(const View& v) : data(v.data), dtype(v.dtype), number(v.number) {
    if (number) std::memcpy(&bits, v.data, size_t(item_size(v.dtype)));
  }
  template <class C> __device__ C value() const {
    C x;
    memcpy(&x, &bits, sizeof x);
    return x;
  }
};
template <int kArity> struct Slots {
  Slot out, in[kArity];
  explicit Slots(const View* views) : out(views[0]) {
    for (int k = 0; k < kArity; ++k) in[k] = Slot(views[k + 1]);
  }
};

template <class F, class C, int kArity> __device__ inline auto call(const C* x) {
  const F f;
  if constexpr (kArity == 1) return f(x[0]);
  else if constexpr (kArity == 2) return f(x[0], x[1]);
  else if constexpr (kArity == 3) return f(x[0], x[1], x[2]);
  else return f(x[0], x[1], x[2], x[3]);
}

// Maps contiguous operands of n elements. Every thread computes one pack; the last thread computes the remaining elements.
template <class F, class R, int kArity>
__global__ void __launch_bounds__(kThreads) map_packs(int64_t n, const __grid_constant__ Slots<kArity> slots) {
  const int64_t i = 4 * (int64_t(blockIdx.x) * kThreads + threadIdx.x);
  if (i >= n) return;
  float x[kArity][4], column[kArity];
  R y[4];
  const bool whole = i + 4 <= n;
  const int count = whole ? 4 : int(n - i);
#pragma unroll
  for (int k = 0; k < kArity; ++k) {
    const Slot& slot = slots.in[k];
    if (slot.number) {
      for (int j = 0; j < 4; ++j) x[k][j] = slot.template value<float>();
    } else if (whole) {
      load_four(slot.dtype, slot.data, i, x[k]);
    } else {
      for (int j = 0; j < 4; ++j)
        x[k][j] = j < count ? load_as<float>(slot.dtype, slot.data + (i + j) * (slot.dtype == DType::f32 ? 4 : 2)) : 0.0f;
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int k = 0; k < kArity; ++k) column[k] = x[k][j];
    y[j] = R(call<F, float, kArity>(column));
  }
  if (whole) return store_four(slots.out.dtype, slots.out.data, i, y);
  const int size = sizeof(R) == 1 ? 1 : slots.out.dtype == DType::f32 ? 4 : 2;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (j < count) store_as<R>(slots.out.dtype, slots.out.data + (i + j) * size, y[j]);
}

// Maps operands of any strides, one element per thread. The first kConditions inputs may have any dtype.
template <class F, class C, class R, int kArity, int kConditions>
__global__ void __launch_bounds__(kThreads)
    map_strided(uint32_t n, const __grid_constant__ Slots<kArity> slots, const __grid_constant__ Walk<kArity + 1> walk) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset[kArity + 1];
  walk.offsets(i, offset);
  C x[kArity];
#pragma unroll
  for (int k = 0; k < kArity; ++k) {
    const Slot& slot = slots.in[k];
    if (slot.number) x[k] = slot.template value<C>();
    else if (k < kConditions) x[k] = convert_from<C>(slot.dtype, slot.data + offset[k + 1]);
    else x[k] = load_as<C>(slot.dtype, slot.data + offset[k + 1]);
  }
  store_as<R>(slots.out.dtype, slots.out.data + offset[0], R(call<F, C, kArity>(x)));
}

// True if operands that are computed with in float, with `arity` inputs, are mapped by packs.
inline bool by_packs(const View* views, int arity) {
  bool packs = packable(views[0]);
  for (int k = 1; packs && k <= arity; ++k) packs = views[k].number || packable(views[k]);
  return packs;
}

template <class F, class C, class R, int kArity, int kConditions> void map(const Launch& launch) {
  View* views = launch.operands;
  const int64_t n = launch.out().size();
  if constexpr (std::is_same_v<C, float> && kConditions == 0) {
    if (by_packs(views, kArity))
      return start(map_packs<F, R, kArity>, blocks_for((n + 3) / 4), kThreads, 0, n, Slots<kArity>(views));
  }
  collapse(views, kArity + 1);
  each_part(views, kArity + 1, [](View* part) {
    const int64_t count = part[0].size();
    start(map_strided<F, C, R, kArity, kConditions>, blocks_for(count), kThreads, 0, uint32_t(count), Slots<kArity>(part),
          Walk<kArity + 1>(part));
  });
}

// An op with its kernels by compute type; null for compute types that the op does not support.
struct ElementwiseKernel : kernels::Elementwise {
  void (*kernels[kComputes])(const Launch&);
};

inline void run_mapped(const Launch& launch) {
  const auto& op = static_cast<const ElementwiseKernel&>(*static_cast<const kernels::Elementwise*>(launch.table));
  // The last input, because the condition of `where` comes first.
  op.kernels[int(compute_type(launch.in(launch.inputs - 1).dtype))](launch);
}

}  // namespace pb::cuda
