// The elementwise loop of a functor, and the kernel that runs such loops.
#pragma once
#include <algorithm>
#include <cstddef>
#include <utility>

#include "families/elementwise.h"
#include "math/functors.h"

namespace pb::cpu {

using kernels::kMaxArity;

// A contiguous loop over n elements of one compute type; inputs and output may be the same memory.
using Loop = void (*)(int64_t n, void* out, const void* const* in);

// An op with its loop for each compute type, or null if the op is not defined for it.
struct ElementwiseKernel : kernels::Elementwise {
  Loop loops[kComputes];
};

void map(const Launch& launch);

// Returns the cost of one element of the op, and the fewest elements of that cost per thread.
int64_t map_work(const ElementwiseKernel& op, Compute compute);
int64_t map_grain(int64_t work);

template <class F, class C, class R, size_t... K>
inline void loop_over(int64_t n, R* out, const void* const* in, std::index_sequence<K...>) {
  const F f;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = R(f(static_cast<const C*>(in[K])[i]...));
}

// Like loop_over, but in strips. The elements of a strip with an angle too large for the usual reduction are computed one by one.
template <class F, class C, size_t... K>
inline void loop_over_angles(int64_t n, C* out, const void* const* in, std::index_sequence<K...> all) {
  constexpr int64_t kStrip = 512;
  const F f;
  for (int64_t i = 0; i < n; i += kStrip) {
    const int64_t count = std::min(kStrip, n - i);
    const void* strip[] = {static_cast<const C*>(in[K]) + i...};
    const C* angle = static_cast<const C*>(strip[kAngle<F>]);
    int far = 0;
    for (int64_t k = 0; k < count; ++k) far |= m::is_far(angle[k]);
    if (far)
      for (int64_t k = 0; k < count; ++k) out[i + k] = f(m::Far<C>(static_cast<const C*>(strip[K])[k])...).value;
    else loop_over<F, C>(count, out + i, strip, all);
  }
}

// The loop of functor F on compute type C with result type R. Scalars that count operations have the same sine for all angles.
template <class F, class C, class R, int Arity> void loop(int64_t n, void* out, const void* const* in) {
  if constexpr (kAngle<F> >= 0 && m::is_real<C>)
    loop_over_angles<F, C>(n, static_cast<R*>(out), in, std::make_index_sequence<Arity>());
  else loop_over<F, C>(n, static_cast<R*>(out), in, std::make_index_sequence<Arity>());
}

}  // namespace pb::cpu
