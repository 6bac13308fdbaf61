// Writing at indices along an axis. Every target takes its updates in the order of the indices: threads share out the
// targets, never the updates, so the result is the same for any number of threads, and there are no atomics.
#pragma once
#include "cpu/index.h"
#include "math/scalar.h"

namespace pb::cpu {

// Combines n updates into columns [column, column + width) of the rows of target that index names: all of them, or those
// listed in `which`. Target and updates have `inner` columns.
struct Part {
  const int64_t* index;
  const int64_t* which;
  int64_t n, inner, column, width;
};
using ScatterLoop = void (*)(void* target, const void* updates, const Part& part);

struct Add {
  template <class A> A operator()(A y, A u) const { return m::add(y, u); }
  bool operator()(bool y, bool u) const { return y | u; }
};
struct Max {  // this way round a NaN wins
  template <class A> A operator()(A y, A u) const { return u > y || u != u ? u : y; }
};
struct Min {
  template <class A> A operator()(A y, A u) const { return u < y || u != u ? u : y; }
};
struct Set {
  template <class A> A operator()(A, A u) const { return u; }
};

enum class Identity { zero, lowest, highest };  // what is there before the updates, if it is not an operand

// What the family keeps of an op. `loops` by compute type, or, where `moves`, by the logarithm of the item size.
struct Scatter {
  Kernel kernel;
  ScatterLoop loops[kComputes];
  bool moves;
  int flops;  // of one update
  Identity identity;
  Negative negative;
};

// out: x with the updates combined in along axis ints[0]. in: x, indices, updates.
void index_write(const Launch& launch);
// The same into the identity. in: indices, updates.
void scatter_write(const Launch& launch);
// updates and indices have one shape: each element has an index of its own along the axis. in: indices, updates.
void along_axis_add(const Launch& launch);
void scatter_cost(const Launch& launch, Cost& cost);

constexpr int64_t kLanes = 16;  // columns are combined and shared out in strips of this many

template <class Op, class C>
inline void combine_row(C* __restrict y, const C* __restrict u, int64_t width) {
  const Op op;
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    for (int64_t k = 0; k < kLanes; ++k) y[i + k] = op(y[i + k], u[i + k]);
  for (; i < width; ++i) y[i] = op(y[i], u[i]);
}

template <class Op, class C> void scatter_loop(void* target, const void* updates, const Part& part) {
  C* y = static_cast<C*>(target) + part.column;
  const C* u = static_cast<const C*>(updates) + part.column;
  const int64_t inner = part.inner;
  if (inner == 1) {
    const Op op;
    for (int64_t k = 0; k < part.n; ++k) {
      const int64_t j = part.which ? part.which[k] : k;
      y[part.index[j]] = op(y[part.index[j]], u[j]);
    }
    return;
  }
  for (int64_t k = 0; k < part.n; ++k) {
    const int64_t j = part.which ? part.which[k] : k;
    combine_row<Op>(y + part.index[j] * inner, u + j * inner, part.width);
  }
}

}  // namespace pb::cpu
