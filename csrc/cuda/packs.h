// Which operands are read and written by packs of four neighbouring elements (element.cuh). Without device code.
#pragma once
#include "launch/shape.h"

namespace pb::cuda {

inline bool packable(const View& v) {
  return v.contiguous() && reinterpret_cast<uintptr_t>(v.data) % (4 * item_size(v.dtype)) == 0;
}

// True if the result views[0] and the inputs after it, `arity` arrays or numbers, are all packable.
inline bool by_packs(const View* views, int arity) {
  bool packs = packable(views[0]);
  for (int k = 1; packs && k <= arity; ++k) packs = views[k].number || packable(views[k]);
  return packs;
}

}  // namespace pb::cuda
