// Copies between dtypes: each thread converts four elements if both sides are contiguous and aligned to packs of four, else one.
#include "cuda/cast.cuh"

#include "cuda/operand.cuh"
#include "math/convert.h"

namespace pb::cuda {
namespace {

// Returns x as an element of type T. A float64 becomes half precision with a single rounding.
template <class T, class C> __device__ inline T narrow(C x) {
  if constexpr (std::is_same_v<C, double> && (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>))
    return T(m::narrow_to_odd(x));
  else return m::narrow<T>(x);
}

// Calls f(Tag<T>{}) for the type T that stores elements of `dtype`, which must be one of the dtypes with the compute type C.
template <class C, class F> __device__ inline void visit_stored(DType dtype, F&& f) {
  if constexpr (std::is_same_v<C, float>) {
    if (dtype == DType::f32) return f(Tag<float>{});
    if (dtype == DType::f16) return f(Tag<float16>{});
    return f(Tag<bfloat16>{});
  } else if constexpr (std::is_same_v<C, int64_t>) {
    switch (dtype) {
      case DType::i8: return f(Tag<int8_t>{});
      case DType::i16: return f(Tag<int16_t>{});
      case DType::i32: return f(Tag<int32_t>{});
      case DType::u8: return f(Tag<uint8_t>{});
      case DType::u16: return f(Tag<uint16_t>{});
      case DType::u32: return f(Tag<uint32_t>{});
      default: return f(Tag<int64_t>{});
    }
  } else {
    f(Tag<C>{});
  }
}
template <class F> __device__ inline void visit_any(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(Tag<double>{});
    case DType::u64: return f(Tag<uint64_t>{});
    case DType::b8: return f(Tag<bool>{});
    case DType::f16:
    case DType::bf16:
    case DType::f32: return visit_stored<float>(dtype, f);
    default: return visit_stored<int64_t>(dtype, f);
  }
}

struct Side {
  char* data;
  DType dtype;
  explicit Side(const View& v) : data(v.data), dtype(v.dtype) {}
};

// Contiguous arrays: a thread converts a pack of four elements. It branches once for the dtype that it reads, which has the compute
// type C, and once for the dtype that it writes.
template <class C> __global__ void __launch_bounds__(kThreads) cast_packs(int64_t n, Side out, Side in) {
  const int64_t i = 4 * (int64_t(blockIdx.x) * kThreads + threadIdx.x);
  if (i >= n) return;
  C x[4];
  visit_stored<C>(in.dtype, [&](auto t) {
    const auto pack = pack_at<typename decltype(t)::type>(in.data, i, n);
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = C(pack.v[k]);
  });
  visit_any(out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    Pack<T> pack;
#pragma unroll
    for (int k = 0; k < 4; ++k) pack.v[k] = narrow<T>(x[k]);
    put_pack(out.data, i, n, pack);
  });
}

// Arrays of any strides: a thread converts one element.
template <class C>
__global__ void __launch_bounds__(kThreads) cast_strided(uint32_t n, Side out, Side in, const __grid_constant__ Walk<2> walk) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset[2];
  walk.offsets(i, offset);
  const C x = load_as<C>(in.dtype, in.data + offset[1]);
  visit_any(out.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    *reinterpret_cast<T*>(out.data + offset[0]) = narrow<T>(x);
  });
}

}  // namespace

void assign_cast(View out, View in) {
  View views[2] = {out, in};
  visit(compute_type(in.dtype), [&](auto t) {
    using C = typename decltype(t)::type;
    if (packable(out) && packable(in)) {
      const int64_t n = out.size();
      return start(cast_packs<C>, blocks_for((n + 3) / 4), kThreads, 0, n, Side(out), Side(in));
    }
    collapse(views, 2);
    each_part(views, 2, [](View* part) {
      const int64_t n = part[0].size();
      start(cast_strided<C>, blocks_for(n), kThreads, 0, uint32_t(n), Side(part[0]), Side(part[1]), Walk<2>(part));
    });
  });
}

}  // namespace pb::cuda
