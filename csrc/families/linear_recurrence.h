// Linear recurrences along an axis: y_t = a_t y_{t-1} + b_t, and y = b at the first step.
#pragma once
#include "families/index.h"
#include "launch/door.h"

namespace pb::kernels {

// out: y, contiguous. in: a and b, of any strides. The last of the ints is 1 if a step multiplies by the coefficient of the step before
// it: y_t = a_{t-1} y_{t-1} + b_t.
// The pullback to b is the recurrence in the other direction with the other one of the two coefficients.
//
// A step is one fused multiply-add, and the steps of a line follow one another, so the bits do not depend on the backend. Half precision
// is computed in float32, and rounded only when it is written.
extern const Kernel linear_recurrence;

// Each backend defines this function.
void run_linear_recurrence(const Launch& launch);

struct LinearRecurrence {
  const View &y, &a, &b;
  AxisSplit split;
  bool reverse, late;

  explicit LinearRecurrence(const Launch& launch)
      : y(launch.out()),
        a(launch.in(0)),
        b(launch.in(1)),
        split(split_at(y, int(launch.ints[0]))),
        reverse(launch.ints[1]),
        late(launch.ints[2]) {}
};

}  // namespace pb::kernels
