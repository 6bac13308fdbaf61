// Included before every source of kernels in the counting build. After it, float and double name counting scalars, so every kernel
// is instantiated on these without any change to its source.
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
// float4 and similar types hold counting scalars. The rest of the simulator keeps plain numbers, so its own work does not count.
#include "count/number.h"
#define float ::pb::count::Float
#define double ::pb::count::Double
#include "cudasim/language.h"
#undef float
#undef double
#include "cudasim/cudasim.h"
#endif

// The special functions keep plain float and double, so the operations inside them do not count.
#include "count/functions.h"
#include "math/activation.h"

// The types of elements, and the type in which each is computed.
#define float ::pb::count::Float
#define double ::pb::count::Double
#include "launch/dtype.h"
#include "math/random.h"
#undef float
#undef double

namespace pb::count {

// A sine and a cosine.
template <class T> m::SinCos<WatchedScalar<T>> sincos_turns(WatchedScalar<T> u) {
  const m::SinCos<T> y = random::sincos_turns(u.value);
  return {special(y.sin), special(y.cos)};
}

}  // namespace pb::count

// The numbers of a launch and the settings of an optimizer stay plain. They are used once per launch, not once per element.
#include "families/update.h"
#include "launch/plan.h"

#define float ::pb::count::Float
#define double ::pb::count::Double
