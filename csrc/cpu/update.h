// The loops of an update, around the rules of math/update.h, for its two compute types.
#pragma once
#include <new>
#include <utility>

#include "cpu/scratch.h"
#include "families/update.h"

namespace pb::cpu {

constexpr int kElementBytes = 256;

// A row with its loops. advance() writes the rule's numbers of a step that has begun, and build() makes the rule's Element from the set
// then. loop() calls it for n weights and gradients: it changes the slots, and writes what is to be added to the weights.
struct HostUpdate : kernels::Update {
  bool adds;  // the change is the gradient itself, so that loop() need not be called
  void (*advance)(Setting* set);
  void (*measuring)(Setting* set);  // null for a rule without a launch before the update
  void (*build[2])(const Setting* set, void* element);
  void (*loop[2])(int64_t n, const void* element, const void* p, const void* g, void* const* slots, void* delta);
};

// A set after its step has begun, and the rule's Element made from it.
struct PreparedSet {
  Setting set[kSetSize];
  alignas(64) char element[kElementBytes];
};

// The sets of a launch whose parameters have a gradient, prepared for the step.
class PreparedSets {
 public:
  // Advances the sets in memory, too, if `advances`. measuring: changes the sets that the Elements are made from, if not null.
  PreparedSets(const Launch& launch, bool advances, void (*measuring)(Setting*) = nullptr);
  const PreparedSet& operator[](int64_t set) const { return *of_set_[set]; }

 private:
  Scratch scratch_;
  const PreparedSet** of_set_;
};

// True for the launch of a rule, which class UpdateStep runs piece by piece.
bool is_update(const Launch& launch);

// A step of an update. The constructor begins it and advances the sets.
class UpdateStep {
 public:
  explicit UpdateStep(const Launch& launch);
  // Updates the elements [begin, end) of entry t. gradients: those of these elements, if they are not in the launch's memory.
  void run(int64_t t, int64_t begin, int64_t end, const char* gradients = nullptr) const;

 private:
  const Launch& launch_;
  const bool skips_, nontemporal_;  // deltas are larger than the caches
  const PreparedSets sets_;
};

template <class U, class A> void build_element(const Setting* set, void* element) {
  using Element = typename U::template Element<A>;
  static_assert(sizeof(Element) <= kElementBytes);
  new (element) Element(set);
}

// Slots are separate arguments, because compilers use __restrict of a parameter but ignore it for elements of an array.
template <class Element, class A, class... Slots>
void update_elements(int64_t n, Element f, const A* __restrict p, const A* __restrict g, A* __restrict delta,
                     Slots* __restrict... slots) {
  for (int64_t i = 0; i < n; ++i) delta[i] = f(p[i], g[i], slots[i]...);
}

template <class U, class A, std::size_t... k>
void update_loop(int64_t n, const void* element, const void* p, const void* g, [[maybe_unused]] void* const* slots, void* delta,
                 std::index_sequence<k...>) {
  update_elements(n, *static_cast<const typename U::template Element<A>*>(element), static_cast<const A*>(p),
                  static_cast<const A*>(g), static_cast<A*>(delta), static_cast<A*>(slots[k])...);
}
template <class U, class A>
void update_loop(int64_t n, const void* element, const void* p, const void* g, void* const* slots, void* delta) {
  update_loop<U, A>(n, element, p, g, slots, delta, std::make_index_sequence<U::kSlots>());
}

}  // namespace pb::cpu
