// Tensors of random numbers. The state, a uint64 array [seed, serial of the call], is read when the kernel runs, so that a
// replay sees new numbers; an element's number depends on nothing else but its position.
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
// out: a state for each call to come: `in` with ints[0] added to its serial. In place it moves the stream on.
void random_state(const Launch& launch);
// in: x, the state. reals: p. Zero with probability p, otherwise x / (1 - p).
void dropout(const Launch& launch);

// Of one number, by the textbook's formulas: drawing words is integer arithmetic.
template <int kAdds, int kMultiplies, int kSpecial> void random_cost(const Launch& launch, Cost& cost) {
  cost.add(Counts{kAdds, kMultiplies, 0, kSpecial}, launch.out().size());
}

}  // namespace pb::kernels
