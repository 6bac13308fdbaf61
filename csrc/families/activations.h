// The activations that a linear layer can end with. PB_ACTIVATIONS is the only list of them: their numbers, the names that a plan
// and Python use, and their functors are all derived from it.
#pragma once
#include <iterator>

#include "math/functors.h"

#define PB_ACTIVATIONS(EACH) EACH(relu) EACH(tanh) EACH(sigmoid)

namespace pb::kernels {

#define PB_ACTIVATION(name) name,
enum class Activation { none, PB_ACTIVATIONS(PB_ACTIVATION) };
#undef PB_ACTIVATION

#define PB_ACTIVATION(name) #name,
constexpr const char* kActivationNames[] = {"none", PB_ACTIVATIONS(PB_ACTIVATION)};  // by number
#undef PB_ACTIVATION
constexpr int kActivations = int(std::size(kActivationNames));

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
