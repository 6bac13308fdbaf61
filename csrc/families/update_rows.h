// The updates that there are, by their hyperparameters: a backend makes its kernels of them.
#pragma once
#include "families/executed.h"
#include "families/update.h"
#include "math/counting.h"
#include "math/update.h"

namespace pb::kernels {

// make(Tag<U>{}, name) gives the backend's entry for update U, which lives as long as the program.
template <Momentum momentum, class Make> const Update& choose_sgd(bool decay, Make&& make) {
  if (decay) return make(Tag<Sgd<momentum, Decay::coupled>>{}, "sgd_step");
  return make(Tag<Sgd<momentum, Decay::none>>{}, "sgd_step");
}
template <class Make> const Update& choose_sgd(const double* hyper, Make&& make) {
  const bool decay = hyper[2] != 0;
  if (hyper[0] == 0) return choose_sgd<Momentum::none>(decay, make);
  return hyper[3] != 0 ? choose_sgd<Momentum::nesterov>(decay, make) : choose_sgd<Momentum::heavy>(decay, make);
}
template <class Make> const Update& choose_adam(const double* hyper, Make&& make) {
  if (hyper[3] == 0) return make(Tag<Adam<Decay::none>>{}, "adam_step");
  return hyper[4] != 0 ? make(Tag<Adam<Decay::decoupled>>{}, "adam_step") : make(Tag<Adam<Decay::coupled>>{}, "adam_step");
}

// What to add to a weight, with all slots of the update in one array.
template <class U, class A> PB_HD A change_of(const typename U::template Element<A>& f, A p, A g, A* slots) {
  static_assert(U::kSlots <= 2);
  if constexpr (U::kSlots == 0) return f(p, g);
  else if constexpr (U::kSlots == 1) return f(p, g, slots[0]);
  else return f(p, g, slots[0], slots[1]);
}

// The entry of U for the bindings.
template <class U> Update entry(const char* name, void (*run)(const Launch&)) {
  double control[kControlSize], hyper[kMaxReals];
  for (double& x : control) x = 1;
  for (double& x : hyper) x = 0.5;
  const typename U::template Element<Counting> f(control, hyper);
  const Counting p(0.5), g(0.5);
  Counting slots[kMaxSlots] = {p, p, p};
  return {{name, run, update_cost, executed_update}, U::kSlots, counts_of([&] { (void)(p + change_of<U>(f, p, g, slots)); })};
}

}  // namespace pb::kernels
