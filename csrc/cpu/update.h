// The loops of an update, around the functors of math/update.h, for its two compute types.
#pragma once
#include <new>

#include "families/update.h"
#include "math/update.h"

namespace pb::cpu {

constexpr int kElementBytes = 256;

// An element is built once a step and called in loops: n weights, gradients and slots in (slots change in place), what to add
// to the weights out.
struct Looped : kernels::Update {
  void (*advance)(Setting* control, const Setting* hyper);
  void (*build[2])(const Setting* control, const Setting* hyper, void* element);
  void (*loop[2])(int64_t n, const void* element, const void* p, const void* g, void* const* slots, void* delta);
};

template <class U, class A> void build_element(const Setting* control, const Setting* hyper, void* element) {
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
