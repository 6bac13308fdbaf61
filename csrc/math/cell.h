// The formulas of one element of a recurrent cell: its gates, its new state, and their pullbacks.
//
// A cell has kGates gates and keeps kKept numbers per element, of which the first is the new hidden state h. x[k] is gate k's share
// of the input product, p[k] its share of the hidden product. `before` is the state of the step before that the formula reads
// directly: c in an LSTM, h in a GRU.
//
// pull() maps the cotangents g of the kept numbers to those of x and p. `later` is the cotangent of h that comes from the hidden
// product of the step after, `carry` what the step after passes on to this state directly; pull() returns what this step passes on.
#pragma once
#include "math/functors.h"

namespace pb {

template <bool kRelu> struct PlainCell {
  static constexpr int kGates = 1, kKept = 1;
  static constexpr bool kCarries = false;  // a state is passed on directly
  static constexpr bool kSplits = false;   // the cotangents of x and p differ
  template <class A> PB_HD static void forward(const A (&x)[kGates], const A (&p)[kGates], A, A (&y)[kKept]) {
    const A z = x[0] + p[0];
    if constexpr (kRelu) y[0] = relu_forward()(z);
    else y[0] = tanh_forward()(z);
  }
  template <class A>
  PB_HD static A pull(const A (&g)[kKept], A later, A, const A (&y)[kKept], A, A (&gx)[kGates], A (&gp)[kGates]) {
    const A total = g[0] + later;
    if constexpr (kRelu) gx[0] = relu_pullback()(total, y[0], y[0]);
    else gx[0] = tanh_pullback()(total, y[0], y[0]);
    gp[0] = gx[0];
    return A(0);
  }
};

// Gates: input i, forget f, cell g, output o. Kept: h, c, i, f, g, o.
struct LstmCell {
  static constexpr int kGates = 4, kKept = 6;
  static constexpr bool kCarries = true, kSplits = false;
  template <class A> PB_HD static void forward(const A (&x)[kGates], const A (&p)[kGates], A before, A (&y)[kKept]) {
    const A i = m::sigmoid(A(x[0] + p[0])), f = m::sigmoid(A(x[1] + p[1]));
    const A g = m::tanh(A(x[2] + p[2])), o = m::sigmoid(A(x[3] + p[3]));
    const A c = f * before + i * g;
    y[0] = o * m::tanh(c);
    y[1] = c, y[2] = i, y[3] = f, y[4] = g, y[5] = o;
  }
  template <class A>
  PB_HD static A pull(const A (&g)[kKept], A later, A carry, const A (&y)[kKept], A before, A (&gx)[kGates], A (&gp)[kGates]) {
    const A i = y[2], f = y[3], n = y[4], o = y[5], size = m::tanh(y[1]);
    const A gh = g[0] + later;
    const A gc = (g[1] + carry) + gh * (o * m::residual(A(1), size, size));
    gx[0] = (g[2] + gc * n) * (i * (A(1) - i));
    gx[1] = (g[3] + gc * before) * (f * (A(1) - f));
    gx[2] = (g[4] + gc * i) * m::residual(A(1), n, n);
    gx[3] = (g[5] + gh * size) * (o * (A(1) - o));
    for (int k = 0; k < kGates; ++k) gp[k] = gx[k];
    return gc * f;
  }
};

// Gates: reset r, update z, new n. Kept: h, r, z, n, and the hidden product of n, which r multiplies.
struct GruCell {
  static constexpr int kGates = 3, kKept = 5;
  static constexpr bool kCarries = true, kSplits = true;
  template <class A> PB_HD static void forward(const A (&x)[kGates], const A (&p)[kGates], A before, A (&y)[kKept]) {
    const A r = m::sigmoid(A(x[0] + p[0])), z = m::sigmoid(A(x[1] + p[1])), n = m::tanh(A(x[2] + r * p[2]));
    y[0] = (before - n) * z + n;
    y[1] = r, y[2] = z, y[3] = n, y[4] = p[2];
  }
  template <class A>
  PB_HD static A pull(const A (&g)[kKept], A later, A carry, const A (&y)[kKept], A before, A (&gx)[kGates], A (&gp)[kGates]) {
    const A r = y[1], z = y[2], n = y[3];
    const A gh = g[0] + (later + carry);
    const A gn = (g[3] + gh * (A(1) - z)) * m::residual(A(1), n, n);
    gx[0] = gp[0] = (g[1] + gn * y[4]) * (r * (A(1) - r));
    gx[1] = gp[1] = (g[2] + gh * (before - n)) * (z * (A(1) - z));
    gx[2] = gn;
    gp[2] = g[4] + gn * r;
    return gh * z;
  }
};

}  // namespace pb
