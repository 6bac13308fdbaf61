// Tensors of random numbers. The state, a uint64 array [seed, serial of the call], is read when the kernel runs, so that a
// replay sees new numbers. The number of an element depends only on the state and on the element's position.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

// out: contiguous. in: the state.
void uniform(const Launch& launch);           // reals: low, high
void normal(const Launch& launch);            // reals: mean, std
void truncated_normal(const Launch& launch);  // reals: mean, std, low and high in standard deviations
void bernoulli(const Launch& launch);         // reals: p
void randint(const Launch& launch);           // ints: low, high
void random_keys(const Launch& launch);       // out: uint64, all bits random
void permutation(const Launch& launch);       // out: int64, the order that sorts the keys
// out: `in` with ints[0] added to its serial, a state for later calls. In place it advances the stream.
void random_state(const Launch& launch);
// in: x, the state. reals: p. The result is 0 with probability p, otherwise x / (1 - p).
void dropout(const Launch& launch);

// One counter yields four numbers, or two 64-bit ones; all of them are computed. Drawing its words is integer arithmetic.
inline int64_t counter_count(const View& out) {
  const int64_t each = item_size(out.dtype) == 8 ? 2 : 4;
  return (out.size() + each - 1) / each;
}
// kAdds, kMultiplies, kSpecial: the work per pair of numbers. kOnce: the multiplications and special ops per counter.
template <int kAdds, int kMultiplies, int kSpecial, int kOnce = 0> void random_cost(const Launch& launch, Cost& cost) {
  const int64_t counters = counter_count(launch.out()), pairs = counters * (item_size(launch.out().dtype) == 8 ? 1 : 2);
  cost.add(Counts{kAdds, kMultiplies, 0, kSpecial}, pairs);
  cost.add(Counts{0, kOnce, 0, kOnce}, counters);
  cost.on_floats = true;
}
inline void dropout_cost(const Launch& launch, Cost& cost) {  // it draws 32-bit numbers for any dtype of x
  const int64_t n = launch.out().size();
  cost.multiplies = n + (n + 3) / 4 * 4;
}

}  // namespace pb::kernels
