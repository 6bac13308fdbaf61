// Loads with a hint for the caches. The hint is ignored, and the alignment is checked.
#pragma once

#include <cstdint>

#include "cudasim/block.h"

template <class T> T __ldcg(const T* p) {
  if (reinterpret_cast<uintptr_t>(p) % alignof(T)) cudasim::fail("a load of %zu bytes is misaligned", sizeof(T));
  return *p;
}
