// The functions of math/ on counting scalars. Each returns the plain function's value, and counts as one special operation or as
// none, whatever operations it performs inside.
#pragma once
#include "count/number.h"
#include "math/convert.h"
#include "math/error_function.h"
#include "math/exp_nonpositive.h"
#include "math/function_list.h"
#include "math/gamma.h"
#include "math/hyperbolic.h"
#include "math/number.h"
#include "math/power.h"
#include "math/trig.h"

namespace pb::m {

using count::WatchedScalar;

template <class T> struct Float<WatchedScalar<T>> : Float<T> {};

#define PB_COUNTED(name) \
  template <class T> WatchedScalar<T> name(WatchedScalar<T> x) { return count::special(name(x.value)); }
PB_SPECIAL_OF_ONE(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name)                                                             \
  template <class T> WatchedScalar<T> name(WatchedScalar<T> a, WatchedScalar<T> b) { \
    return count::special(name(a.value, b.value));                                   \
  }
PB_SPECIAL_OF_TWO(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  template <class T> WatchedScalar<T> name(WatchedScalar<T> x) { return name(x.value); }
PB_FREE_OF_ONE(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  template <class T> WatchedScalar<T> name(WatchedScalar<T> a, WatchedScalar<T> b) { return name(a.value, b.value); }
PB_FREE_OF_TWO(PB_COUNTED)
#undef PB_COUNTED
#define PB_COUNTED(name) \
  template <class T> bool name(WatchedScalar<T> x) { return name(x.value); }
PB_PREDICATES(PB_COUNTED)
// In a formula, a fused multiply-add counts as a multiplication and an addition (math/counting.h).
template <class T> WatchedScalar<T> fma(WatchedScalar<T> a, WatchedScalar<T> b, WatchedScalar<T> c) { return a * b + c; }
template <class T> WatchedScalar<T> residual(WatchedScalar<T> c, WatchedScalar<T> a, WatchedScalar<T> b) { return c - a * b; }
template <class T> bool is_far(WatchedScalar<T> x) { return is_far(x.value); }
#undef PB_COUNTED
// Loops over angles wrap them where one of a strip is far. That is one special operation, too.
#define PB_ANGLES(EACH) EACH(sin) EACH(cos) EACH(tan)
#define PB_COUNTED(name)                                                   \
  template <class T> Far<WatchedScalar<T>> name(Far<WatchedScalar<T>> x) { \
    return count::special(name(Far<T>(x.value.value)).value);              \
  }
PB_ANGLES(PB_COUNTED)
#undef PB_COUNTED
#undef PB_ANGLES

inline count::Float narrow_to_odd(count::Double x) { return narrow_to_odd(x.value); }

}  // namespace pb::m

#if defined(PB_CUDASIM)
inline unsigned __float_as_uint(pb::count::Float x) { return __float_as_uint(x.value); }
inline pb::count::Float fmaf(pb::count::Float a, pb::count::Float b, pb::count::Float c) { return pb::count::fused(a, b, c); }
inline pb::count::Double fma(pb::count::Double a, pb::count::Double b, pb::count::Double c) {
  return pb::count::fused(a, b, c);
}
#endif
