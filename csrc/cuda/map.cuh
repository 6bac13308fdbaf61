// The elementwise kernels: one lean kernel, map_packs, and one for everything else, map_strided.
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

// True for formulas of more than about 150 instructions. A kernel has one copy of such a formula, and not one for each element of a
// pack: the fetch of four copies would cost more than the moves of a loop.
template <class F, class... Long> constexpr bool kIsOneOf = (std::is_same_v<F, Long> || ...);
template <class F>
constexpr bool kLong = kIsOneOf<F, sin_forward, cos_forward, tan_forward, sin_pullback, cos_pullback, tan_pullback,
                                lgamma_forward, digamma_forward, trigamma_forward, lgamma_pullback, digamma_pullback,
                                floor_divide_forward, pow_forward, pow_pullback_a, remainder_pullback_b>;

// Contiguous operands of n elements that are computed with in float. A thread computes a pack of four neighbours; the last thread
// computes those that are left.
//   reads     one pack of each array, 16 bytes (8 of half precision) by one instruction
//   writes    one pack
//   computes  the formula four times: side by side for float32, in a loop for half precision and for long formulas
// kHalf: the arrays are float16 or bfloat16. A number is the same for all threads.
template <class F, class R, int kArity, bool kHalf>
__global__ void __launch_bounds__(kThreads) map_packs(int64_t n, const __grid_constant__ Slots<kArity> slots) {
  const int64_t i = 4 * (int64_t(blockIdx.x) * kThreads + threadIdx.x);
  if (i >= n) return;
  float x[kArity][4];
#pragma unroll
  for (int k = 0; k < kArity; ++k) {
    const Slot& slot = slots.in[k];
    if (!slot.number) load_pack(kHalf ? slot.dtype : DType::f32, slot.data, i, n, x[k]);
    else
      for (int j = 0; j < 4; ++j) x[k][j] = slot.template value<float>();
  }
  R y[4]{};
  constexpr int kCopies = kHalf || kLong<F> ? 1 : 4;
#pragma unroll(kCopies)
  for (int j = 0; j < 4; ++j) {  // x and y move on by an element, so that a loop finds both in the same registers each time
    float column[kArity];
    for (int k = 0; k < kArity; ++k) column[k] = x[k][0], x[k][0] = x[k][1], x[k][1] = x[k][2], x[k][2] = x[k][3];
    y[0] = y[1], y[1] = y[2], y[2] = y[3], y[3] = R(call<F, float, kArity>(column));
  }
  store_pack(kHalf ? slots.out.dtype : DType::f32, slots.out.data, i, n, y);
}

// Operands of any strides and any dtype with the compute type C. A thread computes one element: it finds its position along each
// axis (Walk), reads one element of each array, and writes one. The first kConditions inputs may have any dtype at all.
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

// True if the operands have half precision. Those that are arrays have one dtype.
inline bool in_half(const View* views, int arity) {
  for (int k = 1; k <= arity; ++k)
    if (!views[k].number) return is_half(views[k].dtype);
  return false;
}

template <class F, class C, class R, int kArity, int kConditions>
void map(const Launch& launch) {
  View* views = launch.operands;
  const int64_t n = launch.out().size();
  if constexpr (std::is_same_v<C, float> && kConditions == 0) {
    if (by_packs(views, kArity)) {
      const auto kernel = in_half(views, kArity) ? map_packs<F, R, kArity, true> : map_packs<F, R, kArity, false>;
      return start(kernel, blocks_for((n + 3) / 4), kThreads, 0, n, Slots<kArity>(views));
    }
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
