// Convolutions over two axes, in the layouts of PyTorch: x (images, channels, height, width), w (channels of y, channels of x in a
// group, kernel height, kernel width), y (images, channels of y, height, width). With taps (i, j) of the kernel,
//   y[n, o, p, q] = sum over (c, i, j) of w[o, c, i, j] x[n, c of o's group, p stride + i dilation - padding, likewise with q and j],
// where x is 0 outside its axes. A convolution is linear in x and in w, so its gradients are two more ops of this kind, and the
// gradients of the three ops are the three ops again.
//
// The terms of a sum are ordered as families/order.h says. The contraction runs over
//   convolution:        c, i, j. Elements of the padding are terms like all others.
//   convolution_input:  o of the group, i, j; only those taps that meet a position of y, or would if y went on.
//   convolution_weight: n, p, q.
#pragma once
#include <vector>

#include "launch/door.h"

namespace pb::kernels {

// convolution: out: y. in: x, w, and the bias of each channel of y if there is a third input.
// convolution_input: out: gx. in: gy, w. It is also the transposed convolution of gy.
// convolution_weight: out: gw. in: x, gy.
// All have one floating dtype. Outputs are contiguous, inputs have any strides.
// ints: groups; then for the height and for the width: stride, padding before the first element, dilation.
extern const Kernel convolution, convolution_input, convolution_weight;

// Each backend defines the following functions.
void run_convolution(const Launch& launch);
void run_convolution_input(const Launch& launch);
void run_convolution_weight(const Launch& launch);

// What happens along the height or the width.
struct ConvAxis {
  int64_t x, w, y;  // lengths
  int64_t stride, padding, dilation;
};

struct ConvShape {
  int64_t images, groups;
  int64_t in, out;  // the channels of x and of y, in one group
  ConvAxis axis[2];

  int64_t taps() const { return axis[0].w * axis[1].w; }
  int64_t pixels_of_x() const { return axis[0].x * axis[1].x; }
  int64_t pixels_of_y() const { return axis[0].y * axis[1].y; }
};

// The taps along an axis that meet the elements r, r + stride, r + 2 stride, … of x, for a number r below the stride.
struct InputTaps {
  int64_t elements;            // the number of these elements
  int64_t first, step, count;  // the first tap, and the distance between taps
  int64_t at, move;            // the element of y that the first tap and element r meet; what the next tap adds to it
};
// Returns the taps for each r.
std::vector<InputTaps> input_taps(const ConvAxis& axis);

// Weights without elements count as a kernel without taps.
inline ConvShape conv_shape(const Launch& launch, const View& x, const View& w, const View& y) {
  const int64_t* ints = launch.ints;
  const bool empty = w.size() == 0;
  ConvShape s{x.shape[0], ints[0], w.shape[1], w.shape[0] / ints[0], {}};
  for (int d = 0; d < 2; ++d)
    s.axis[d] = {x.shape[2 + d], empty ? 0 : w.shape[2 + d], y.shape[2 + d], ints[1 + 3 * d], ints[2 + 3 * d], ints[3 + 3 * d]};
  return s;
}
inline ConvShape shape_of_convolution(const Launch& l) { return conv_shape(l, l.in(0), l.in(1), l.out()); }
inline ConvShape shape_of_convolution_input(const Launch& l) { return conv_shape(l, l.out(), l.in(1), l.in(0)); }
inline ConvShape shape_of_convolution_weight(const Launch& l) { return conv_shape(l, l.in(0), l.out(), l.in(1)); }

}  // namespace pb::kernels
