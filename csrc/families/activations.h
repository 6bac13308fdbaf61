// The activations that a linear layer ends with, by their numbers.
#pragma once
#include "math/functors.h"

namespace pb::kernels {

struct identity_forward {
  template <class A> PB_HD A operator()(A x) const { return x; }
};
struct identity_pullback {
  template <class A> PB_HD A operator()(A g, A, A) const { return g; }
};

// Calls f with the functors of an activation, forward and pullback: the only switch over them.
template <class F> PB_HD void visit_activation(int activation, F&& f) {
  switch (activation) {
    case 1: return f(relu_forward(), relu_pullback());
    case 2: return f(tanh_forward(), tanh_pullback());
    case 3: return f(sigmoid_forward(), sigmoid_pullback());
    default: return f(identity_forward(), identity_pullback());
  }
}

}  // namespace pb::kernels
