// The functions of math/ on numbers that are counted: their values, and one special operation or none, whatever is inside.
#pragma once
#include "count/number.h"
#include "math/convert.h"
#include "math/error_function.h"
#include "math/exp_nonpositive.h"
#include "math/hyperbolic.h"
#include "math/number.h"
#include "math/power.h"
#include "math/trig.h"

namespace pb::m {

using count::Counted;

template <class T> struct Float<Counted<T>> : Float<T> {};

#define PB_SPECIAL(name) \
  template <class T> Counted<T> name(Counted<T> x) { return count::special(name(x.value)); }
PB_SPECIAL(exp)
PB_SPECIAL(exp_nonpositive)
PB_SPECIAL(exp2)
PB_SPECIAL(expm1)
PB_SPECIAL(log)
PB_SPECIAL(log2)
PB_SPECIAL(log10)
PB_SPECIAL(log1p)
PB_SPECIAL(sin)
PB_SPECIAL(cos)
PB_SPECIAL(tan)
PB_SPECIAL(asin)
PB_SPECIAL(acos)
PB_SPECIAL(atan)
PB_SPECIAL(sinh)
PB_SPECIAL(cosh)
PB_SPECIAL(tanh)
PB_SPECIAL(asinh)
PB_SPECIAL(acosh)
PB_SPECIAL(atanh)
PB_SPECIAL(erf)
PB_SPECIAL(erfc)
PB_SPECIAL(erfinv)
PB_SPECIAL(normal_cdf)
PB_SPECIAL(normal_density)
PB_SPECIAL(sqrt)
PB_SPECIAL(rsqrt)
#undef PB_SPECIAL

#define PB_SPECIAL(name) \
  template <class T> Counted<T> name(Counted<T> a, Counted<T> b) { return count::special(name(a.value, b.value)); }
PB_SPECIAL(pow)
PB_SPECIAL(atan2)
PB_SPECIAL(hypot)
PB_SPECIAL(remainder)
PB_SPECIAL(floor_divide)
#undef PB_SPECIAL

#define PB_FREE(name) \
  template <class T> Counted<T> name(Counted<T> x) { return name(x.value); }
PB_FREE(abs)
PB_FREE(sign)
PB_FREE(floor)
PB_FREE(ceil)
PB_FREE(trunc)
PB_FREE(round)
#undef PB_FREE

#define PB_FREE(name) \
  template <class T> Counted<T> name(Counted<T> a, Counted<T> b) { return name(a.value, b.value); }
PB_FREE(copysign)
PB_FREE(max)
PB_FREE(min)
PB_FREE(if_any)
#undef PB_FREE

#define PB_FREE(name) \
  template <class T> bool name(Counted<T> x) { return name(x.value); }
PB_FREE(isnan)
PB_FREE(isinf)
PB_FREE(isfinite)
PB_FREE(signbit)
#undef PB_FREE

inline count::Float narrow_to_odd(count::Double x) { return narrow_to_odd(x.value); }

}  // namespace pb::m
