// Loads and stores with a hint for the caches. The hint is ignored, and the alignment is checked.
#pragma once

#include <cstdint>

#include "cudasim/block.h"

namespace cudasim {

template <class T> const T& load(const T* p) {
  if (reinterpret_cast<uintptr_t>(p) % alignof(T)) fail("a load of %zu bytes is misaligned", sizeof(T));
  return *p;
}

template <class T> void store(T* p, const T& value) {
  if (reinterpret_cast<uintptr_t>(p) % alignof(T)) fail("a store of %zu bytes is misaligned", sizeof(T));
  *p = value;
}

}  // namespace cudasim

template <class T> T __ldg(const T* p) { return cudasim::load(p); }
template <class T> T __ldca(const T* p) { return cudasim::load(p); }
template <class T> T __ldcg(const T* p) { return cudasim::load(p); }
template <class T> T __ldcs(const T* p) { return cudasim::load(p); }
template <class T> T __ldcv(const T* p) { return cudasim::load(p); }
template <class T> T __ldlu(const T* p) { return cudasim::load(p); }
template <class T> void __stcg(T* p, T value) { cudasim::store(p, value); }
template <class T> void __stcs(T* p, T value) { cudasim::store(p, value); }
template <class T> void __stwb(T* p, T value) { cudasim::store(p, value); }
template <class T> void __stwt(T* p, T value) { cudasim::store(p, value); }
