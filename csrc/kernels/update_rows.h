// The rows of math/update.def: a backend makes its kernels of them.
#pragma once
#include <utility>

#include "kernels/executed.h"
#include "kernels/update.h"
#include "math/counting.h"
#include "math/update.h"

namespace pb::kernels {

// Calls add(Tag<rule>{}, kernel's name) for each row.
template <class Add> void each_update(Add&& add) {
#define PB_UPDATE(name, ...) add(Tag<__VA_ARGS__>{}, #name "_step");  // a rule's template arguments contain commas
#include "math/update.def"
}

// Returns what rule U adds to a weight; changes its slots, which are elements of one array.
template <class U, class A, std::size_t... k>
PB_HD A change_of(const typename U::template Element<A>& f, A p, A g, [[maybe_unused]] A* slots, std::index_sequence<k...>) {
  return f(p, g, slots[k]...);
}
template <class U, class A> PB_HD A change_of(const typename U::template Element<A>& f, A p, A g, A* slots) {
  return change_of<U>(f, p, g, slots, std::make_index_sequence<U::kSlots>());
}

// Returns the row's entry for the bindings.
template <class U> Update entry(const char* name, void (*run)(const Launch&)) {
  static_assert(U::kSlots <= kMaxSlots && U::kHypers <= kMaxReals);
  double control[kControlSize], hyper[U::kHypers];
  for (double& x : control) x = 1;
  for (double& x : hyper) x = 0.5;
  const typename U::template Element<Counting> f(control, hyper);
  const Counting p(0.5), g(0.5);
  Counting slots[kMaxSlots] = {p, p, p};
  const Counts counts = counts_of([&] { (void)(p + change_of<U>(f, p, g, slots)); });
  return {{name, run, update_cost, executed_update}, U::kSlots, U::kHypers, counts};
}

}  // namespace pb::kernels
