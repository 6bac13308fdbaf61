// The formulas of the norms of a row and of its variance, on any walk of rows.h.
#pragma once
#include "families/rows.h"

namespace pb::kernels {

// y = (x - mean) scale w + b
template <bool kCentred, class Over, class X, class A, class W, class B, class Y>
PB_HD void affine(const Over& over, X x, A mean, A scale, W w, B b, Y y) {
  over.each([=](auto i) {
    A a = x[i];
    if constexpr (kCentred) a = a - mean;
    a = a * scale;
    if constexpr (is_given<W>) a = a * w[i];
    if constexpr (is_given<B>) a = a + b[i];
    y[i] = a;
  });
}

// Two passes: the mean, then the squared deviations. One pass would lose a small variance next to a large mean.
//
// The rounding of the mean may exceed the deviations of a row that is nearly constant, and the sum of large numbers may overflow. A
// row whose standard deviation is not above kNear roundings of its mean is measured again, from the differences to that mean, or to
// the first element. The mean of equal elements is then that element, and their variance 0.
template <class A> struct Spread {
  A mean, variance;
};
template <class A> constexpr double kNear = 4096 * (sizeof(A) == sizeof(float) ? 0x1p-24 : 0x1p-53);
template <class Over, class X, class A, class... Next>
PB_HD A variance_about(A mean, const Over& over, X x, Next... next) {
  const auto squared = [=](auto i) {
    const A z = x[i] - mean;
    return A(z * z);
  };
  return over.mean(over.template fold<sum_reduce>(squared, next...));
}
// Measures a row again whose first mean is given. `near` is false for a row that is walked in step with such a row only.
template <class Over, class X, class A> PB_RARE Spread<A> measured_again(A mean, bool near, const Over& over, X x) {
  const A from = m::select(m::isfinite(mean), mean, A(over.at(x, 0)));
  const A off = over.mean(over.template fold<sum_reduce>([=](auto i) { return A(x[i] - from); }));
  mean = m::select(near, A(from + off), mean);
  return {mean, variance_about(mean, over, x)};
}
template <class Over, class X, class... Next> PB_HD auto spread_of(const Over& over, X x, Next... next) {
  auto mean = over.mean(over.template fold<sum_reduce>([=](auto i) { return x[i]; }, x));
  using A = decltype(mean);
  const A variance = variance_about(mean, over, x, next...), deviation = mean * A(kNear<A>), square = deviation * deviation;
  const bool near = mean != A(0) && !(variance > square);
  return over.any(near) ? measured_again(mean, near, over, x) : Spread<A>{mean, variance};
}

// Squares may overflow, or have lost digits because they are near the smallest number. Such a row is measured again, scaled by a power
// of two.
template <class A> constexpr double kFar = sizeof(A) == sizeof(float) ? 0x1p96 : 0x1p768;  // a row is scaled by it, or down
template <class A> constexpr double kSmallSquare =
    sizeof(A) == sizeof(float) ? 0x1p-102 : 0x1p-969;  // smaller ones lose digits
template <class A> PB_HD bool is_far_square(A square) { return m::isinf(square) | (square < A(kSmallSquare<A>)); }
template <class A> PB_HD A scale_of_far(A square) {
  return m::select(square < A(kSmallSquare<A>), A(kFar<A>), m::select(m::isinf(square), A(1 / kFar<A>), A(1)));
}
// Returns the mean square of the distances from a number, times scale².
template <class Over, class X, class A> PB_RARE A scaled_square(A scale, A from, const Over& over, X x) {
  const auto squared = [=](auto i) {
    const A z = (x[i] - from) * scale;
    return A(z * z);
  };
  return over.mean(over.template fold<sum_reduce>(squared));
}
// Returns 1 / the root of the mean square of the distances plus eps, where `square` is far.
template <class Over, class X, class A> PB_HD A inverse_of_far(A square, A from, const Over& over, X x, A eps) {
  const A scale = scale_of_far(square);
  return scale * m::rsqrt(A(scaled_square(scale, from, over, x) + eps * scale * scale));
}
template <class Over, class X, class A> PB_HD A inverse_size(const Over& over, X x, A eps) {
  const A square = over.mean(over.template fold<sum_reduce>([=](auto i) { return A(x[i] * x[i]); }, x)) + eps;
  return over.any(is_far_square(square)) ? inverse_of_far(square, A(0), over, x, eps) : A(m::rsqrt(square));
}
// Returns 1 / the deviation of a row whose spread is s. It is NaN if a distance overflows, because 0 would make zeros of the row.
template <class Over, class X, class A> PB_HD A inverse_deviation(const Spread<A>& s, const Over& over, X x, A eps) {
  const A square = s.variance + eps;
  if (!over.any(is_far_square(square))) return m::rsqrt(square);
  const A inverse = inverse_of_far(square, s.mean, over, x, eps);
  return m::select(m::isinf(square) & (inverse == A(0)), A(m::kNaN<float>), inverse);
}

struct Variance {
  template <class Over, class X, class Y> PB_HD void operator()(const Over& over, X x, Y y) const {
    const auto s = spread_of(over, x);
    auto variance = s.variance;
    if (over.any(is_far_square(variance))) {
      const auto scale = scale_of_far(variance);
      variance = scaled_square(scale, s.mean, over, x) / scale / scale;
    }
    y[0] = variance;
  }
};
// The root of factor times the variance.
struct Deviation {
  double factor = 1;

  template <class Over, class X, class Y> PB_HD void operator()(const Over& over, X x, Y y) const {
    const auto s = spread_of(over, x);
    using A = std::decay_t<decltype(s.variance)>;
    const A square = s.variance * A(factor);
    A deviation = m::sqrt(square);
    if (over.any(is_far_square(square))) {
      const A scale = scale_of_far(square);
      deviation = m::sqrt(A(scaled_square(scale, s.mean, over, x) * A(factor))) / scale;
    }
    y[0] = deviation;
  }
};

struct Ignore {
  template <class A> PB_HD void operator()(A, A) const {}
};
// Norm<true> also calls visit(mean, variance).
template <bool kCentred> struct Norm;
template <> struct Norm<true> {
  template <class Over, class X, class W, class B, class A, class Y, class Visit = Ignore>
  PB_HD void operator()(const Over& over, X x, W w, B b, A eps, Y y, const Visit& visit = {}) const {
    const Spread<A> s = spread_of(over, x);
    visit(s.mean, s.variance);
    affine<true>(over, x, s.mean, inverse_deviation(s, over, x, eps), w, b, y);
  }
};
template <> struct Norm<false> {
  template <class Over, class X, class W, class B, class A, class Y>
  PB_HD void operator()(const Over& over, X x, W w, B b, A eps, Y y) const {
    affine<false>(over, x, A(0), inverse_size(over, x, eps), w, b, y);
  }
};

// A weight that all elements of a row share.
template <class A> struct Same {
  A value;
  PB_HD A operator[](int64_t) const { return value; }
};
template <class W> constexpr bool is_same_weight = false;
template <class A> constexpr bool is_same_weight<Same<A>> = true;
// Takes the sum over a row of the terms of a gradient.
template <class A> struct Total {
  A* to;
};
template <class S> constexpr bool is_total = false;
template <class A> constexpr bool is_total<Total<A>> = true;

// With h = g w and z = (x - mean) r: gx = r (h - mean(h) - z mean(h z)), gweight = g z, gbias = g. The gradients of
// weight and bias are added to gw and gb. h is kept in gx if each element has a weight of its own.
template <bool kCentred> struct NormPullback;
template <> struct NormPullback<true> {
  template <class Over, class G, class X, class W, class A, class GX, class S>
  PB_HD void operator()(const Over& over, G g, X x, W w, A eps, GX gx, S gw, S gb) const {
    const Spread<A> s = spread_of(over, x, g);
    const A mean = s.mean, r = inverse_deviation(s, over, x, eps);
    constexpr bool kKept = is_given<W> && !is_same_weight<W>;
    const auto keep = [=](auto i) {
      if constexpr (kKept) return A(gx[i] = g[i] * w[i]);
      else if constexpr (is_given<W>) return A(g[i] * w[i]);
      else return A(g[i]);
    };
    const auto h = [=](auto i) {
      if constexpr (kKept) return A(gx[i]);
      else return keep(i);
    };
    const A along = over.mean(over.template fold<sum_reduce>(keep));
    const A across = over.mean(over.template fold<sum_reduce>([=](auto i) { return A(h(i) * ((x[i] - mean) * r)); }));
    if constexpr (is_total<S>) {
      *gw.to = over.template fold<sum_reduce>([=](auto i) { return A(g[i] * ((x[i] - mean) * r)); });
      *gb.to = over.template fold<sum_reduce>([=](auto i) { return A(g[i]); });
    }
    over.each([=](auto i) {
      const A z = (x[i] - mean) * r;
      if constexpr (!is_total<S>) {
        gw[i] += g[i] * z;
        gb[i] += g[i];
      }
      gx[i] = r * (h(i) - along - z * across);
    });
  }
};
template <> struct NormPullback<false> {
  template <class Over, class G, class X, class W, class A, class GX, class S>
  PB_HD void operator()(const Over& over, G g, X x, W w, A eps, GX gx, S gw, S) const {
    const A r = inverse_size(over, x, eps);
    const auto keep = [=](auto i) {
      if constexpr (is_given<W>) return A(gx[i] = g[i] * w[i]);
      else return A(g[i]);
    };
    const A across = over.mean(over.template fold<sum_reduce>([=](auto i) { return A(keep(i) * (x[i] * r)); }, g));
    over.each([=](auto i) {
      const A z = x[i] * r;
      gw[i] += g[i] * z;
      if constexpr (is_given<W>) gx[i] = r * (gx[i] - z * across);
      else gx[i] = r * (g[i] - z * across);
    });
  }
};

}  // namespace pb::kernels
