// Optimizer updates: one launch for all tensors, a loop around the functors of math/update.h.
#pragma once
#include <new>

#include "launch/door.h"

namespace pb::cpu {

constexpr int kMaxSlots = 3, kElementBytes = 256;

// What the family keeps of an update, for its two compute types. An element is built once a step and called in loops:
// n weights, gradients and slots in (slots change in place), what to add to the weights out.
struct Update {
  Kernel kernel;
  int slots;
  void (*advance)(double* control, const double* hyper);
  void (*build[2])(const double* control, const double* hyper, void* element);
  void (*loop[2])(int64_t n, const void* element, const void* p, const void* g, void* const* slots, void* delta);
  int flops, special;  // of one element, with p += delta
};

// Operands of an update of `entries` tensors: the weights, then the entries of each slot, then the deltas (data null
// where nobody asked), then the control block; inputs: the gradients (data null: the entry is left alone). All but the
// gradients are flat and contiguous; slots of half precision weights are float32.
// ints: entries, preview (deltas are written and nothing else). reals: the hyperparameters. table: the Update.
void update(const Launch& launch);
void update_cost(const Launch& launch, Cost& cost);

// out: the control block. in: the gradients (data null: left out). reals: the largest norm that is left as it is.
void clip_norm(const Launch& launch);
void clip_norm_cost(const Launch& launch, Cost& cost);

template <class U, class A> void build_element(const double* control, const double* hyper, void* element) {
  using Element = typename U::template Element<A>;
  static_assert(sizeof(Element) <= kElementBytes);
  new (element) Element(control, hyper);
}

template <class U, class A>
void update_loop(int64_t n, const void* element, const void* weights, const void* gradients, void* const* slots, void* deltas) {
  const auto f = *static_cast<const typename U::template Element<A>*>(element);
  const A* __restrict p = static_cast<const A*>(weights);
  const A* __restrict g = static_cast<const A*>(gradients);
  A* __restrict delta = static_cast<A*>(deltas);
  if constexpr (U::kSlots == 0) {
    for (int64_t i = 0; i < n; ++i) delta[i] = f(p[i], g[i]);
  } else if constexpr (U::kSlots == 1) {
    A* __restrict a = static_cast<A*>(slots[0]);
    for (int64_t i = 0; i < n; ++i) delta[i] = f(p[i], g[i], a[i]);
  } else {
    A* __restrict a = static_cast<A*>(slots[0]);
    A* __restrict b = static_cast<A*>(slots[1]);
    for (int64_t i = 0; i < n; ++i) delta[i] = f(p[i], g[i], a[i], b[i]);
  }
}

}  // namespace pb::cpu
