// The elementwise loop: one output from up to four inputs of the same shape after broadcasting.
#pragma once
#include <cstddef>
#include <utility>

#include "launch/door.h"

namespace pb::cpu {

constexpr int kMaxArity = 4;

// A contiguous loop over n elements of one compute type; inputs and output may be the same memory.
using Loop = void (*)(int64_t n, void* out, const void* const* in);

// What the elementwise family keeps of an op: its loops (null where a type makes no sense) and, measured by running the
// functor on the counting scalar, what one element costs.
struct Elementwise {
  Kernel kernel;
  int arity;
  bool predicate;  // the result is bool
  int conditions;  // so many first operands are of their own dtype, read as the compute type (where)
  Loop loops[kComputes];
  int flops, special;
};

void map(const Launch& launch);
void map_cost(const Launch& launch, Cost& cost);

template <class F, class C, class R, size_t... K>
inline void loop_over(int64_t n, R* out, const void* const* in, std::index_sequence<K...>) {
  const F f;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = R(f(static_cast<const C*>(in[K])[i]...));
}

// The loop of functor F on compute type C with result type R.
template <class F, class C, class R, int Arity> void loop(int64_t n, void* out, const void* const* in) {
  loop_over<F, C>(n, static_cast<R*>(out), in, std::make_index_sequence<Arity>());
}

}  // namespace pb::cpu
