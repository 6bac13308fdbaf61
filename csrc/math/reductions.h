// Turns the rows of reduce.def into types: name_reduce::identity<A>() and name_reduce::combine(a, b).
#pragma once
#include "math/number.h"

namespace pb {

#define PB_REDUCE(name, IDENTITY, COMBINE)                                  \
  struct name##_reduce {                                                    \
    template <class A> PB_HD static A identity() { return IDENTITY; }       \
    template <class A> PB_HD static A combine(A a, A b) { return COMBINE; } \
  };
#include "math/reduce.def"

}  // namespace pb
