// The activations that a linear layer can end with. PB_ACTIVATIONS is the only list of them: their numbers, the names that a plan
// and Python use, and their functors (families/activation_functors.h) are all derived from it.
#pragma once
#include <iterator>

#define PB_ACTIVATIONS(EACH) EACH(relu) EACH(tanh) EACH(sigmoid)

namespace pb::kernels {

#define PB_ACTIVATION(name) name,
enum class Activation { none, PB_ACTIVATIONS(PB_ACTIVATION) };
#undef PB_ACTIVATION

#define PB_ACTIVATION(name) #name,
constexpr const char* kActivationNames[] = {"none", PB_ACTIVATIONS(PB_ACTIVATION)};  // by number
#undef PB_ACTIVATION
constexpr int kActivations = int(std::size(kActivationNames));

}  // namespace pb::kernels
