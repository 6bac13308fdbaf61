// The functors of the activations that a linear layer can end with.
#pragma once
#include "families/activations.h"
#include "math/functors.h"

namespace pb::kernels {

struct identity_forward {
  template <class A> PB_HD A operator()(A x) const { return x; }
};
struct identity_pullback {
  template <class A> PB_HD A operator()(A g, A, A) const { return g; }
};

// Calls f with the functors of an activation, forward and pullback.
template <class F> PB_HD void visit_activation(int activation, F&& f) {
  switch (Activation(activation)) {
#define PB_ACTIVATION(name) \
  case Activation::name: return f(name##_forward(), name##_pullback());
    PB_ACTIVATIONS(PB_ACTIVATION)
#undef PB_ACTIVATION
    default: return f(identity_forward(), identity_pullback());
  }
}

}  // namespace pb::kernels
