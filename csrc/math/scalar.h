// Includes all of the scalar mathematics, and defines acc_t<T>, the type in which arithmetic on elements of type T is done.
#pragma once
#include "math/activation.h"
#include "math/bits.h"
#include "math/error_function.h"
#include "math/exp_log.h"
#include "math/gamma.h"
#include "math/half.h"
#include "math/hyperbolic.h"
#include "math/number.h"
#include "math/power.h"
#include "math/trig.h"

namespace pb {

template <class T> struct Arithmetic {
  using type = T;
};
template <> struct Arithmetic<float16> {
  using type = float;
};
template <> struct Arithmetic<bfloat16> {
  using type = float;
};
template <class T> using acc_t = typename Arithmetic<T>::type;

}  // namespace pb
