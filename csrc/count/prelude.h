// Included before the sources of the counting build: from its end on, float and double are numbers that are counted. So every
// kernel is instantiated on a counting scalar, and no line of it knows.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(PB_CUDASIM)
// float4 and its like hold numbers that are counted; what the simulator does is no work.
#include "count/number.h"
#define float ::pb::count::Float
#define double ::pb::count::Double
#include "cudasim/language.h"
#undef float
#undef double
#include "cudasim/cudasim.h"
#endif

// Special functions keep their float and double: what is inside them does not count.
#include "count/functions.h"
#include "math/activation.h"

// What elements are, and the type that each is computed in.
#define float ::pb::count::Float
#define double ::pb::count::Double
#include "launch/dtype.h"
#include "math/random.h"
#undef float
#undef double

namespace pb::count {

// A sine and a cosine.
template <class T> m::SinCos<Counted<T>> sincos_turns(Counted<T> u) {
  const m::SinCos<T> y = random::sincos_turns(u.value);
  return {special(y.sin), special(y.cos)};
}

}  // namespace pb::count

// The numbers of a launch, and the settings of an optimizer: computed with once, which is no work of the elements.
#include "families/update.h"
#include "launch/plan.h"

#define float ::pb::count::Float
#define double ::pb::count::Double
