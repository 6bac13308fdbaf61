// Ops that own a row: softmax and its relatives, the norms, cross entropy. A row is the last axis of an operand.
#pragma once
#include "launch/door.h"
#include "math/counting.h"
#include "math/exp_nonpositive.h"
#include "math/functors.h"

namespace pb::kernels {

// All operands have as many rows as x; an operand with one value per row has a last axis of length one. Inputs are floats of one
// dtype, of any strides; outputs are contiguous.
// softmax, log_softmax: out: y. in: x.         logsumexp: out: y, one value per row. in: x.
// softmax_pullback, log_softmax_pullback: out: gx. in: g, y.
// logsumexp_pullback: out: gx. in: g, x, y; g and y have one value per row.
extern const Kernel softmax, log_softmax, logsumexp;
extern const Kernel softmax_pullback, log_softmax_pullback, logsumexp_pullback;

// reals[0]: eps. ints: 1 if there is a weight, and 1 if there is a bias, (n,) each.
// layer_norm, rms_norm: out: y. in: x, weight, bias.
// layer_norm_pullback, rms_norm_pullback: out: gx, gweight, gbias. in: g, x, weight. rms_norm_pullback has no gbias.
extern const Kernel layer_norm, layer_norm_pullback, rms_norm, rms_norm_pullback;

// variance: out: the mean squared distance from the mean, one value per row. in: x, whose rows are not empty.
extern const Kernel variance;

// cross_entropy: out: the loss of each row. in: logits (rows, classes), labels (rows,) of any integer dtype.
// cross_entropy_pullback: out: glogits. in: g, logits, labels.
// cross_entropy_with_gradient computes both at once, with the same bits. out: loss, glogits. in: g, logits, labels.
// ints[0]: the label of rows that are ignored. reals[0]: the share of the target that is spread over all classes.
// These kernels throw OutOfRange for a wrong label. On a GPU a later call throws it, and the loss and the gradient of such a row
// are 0.
extern const Kernel cross_entropy, cross_entropy_pullback, cross_entropy_with_gradient;

// The losses of all rows as one number: their sum, or with ints[1] their mean over the rows that count. Operands, ints and reals are
// those of the kernels above, but the loss and g are single numbers. The bits are those of a sum of the rows' losses and of
// divide_by_count, for the loss as for g.
extern const Kernel cross_entropy_total, cross_entropy_total_pullback, cross_entropy_total_with_gradient;

// out[r] = x[r] / (number of labels in row r that differ from ints[0]). in: x, one value per row; labels, of any integer dtype.
void divide_by_count(const Launch& launch);
void divide_by_count_cost(const Launch& launch, Cost& cost);

// Each backend defines the following functions.
void run_softmax(const Launch& launch);
void run_log_softmax(const Launch& launch);
void run_logsumexp(const Launch& launch);
void run_softmax_pullback(const Launch& launch);
void run_log_softmax_pullback(const Launch& launch);
void run_logsumexp_pullback(const Launch& launch);
void run_layer_norm(const Launch& launch);
void run_layer_norm_pullback(const Launch& launch);
void run_rms_norm(const Launch& launch);
void run_rms_norm_pullback(const Launch& launch);
void run_variance(const Launch& launch);
void run_cross_entropy(const Launch& launch);
void run_cross_entropy_pullback(const Launch& launch);
void run_cross_entropy_with_gradient(const Launch& launch);
void run_cross_entropy_total(const Launch& launch);
void run_cross_entropy_total_pullback(const Launch& launch);
void run_cross_entropy_total_with_gradient(const Launch& launch);

inline int64_t row_length(const View& v) { return v.shape[v.ndim - 1]; }
inline int64_t row_count(const View& v) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < v.ndim; ++d) rows *= v.shape[d];
  return rows;
}

// Sets the single element of `out` to the sum of all elements of x, by the reduction of the backend.
void sum_all(const View& out, const View& x);

// ---- the formulas: each runs on any walk over a row, which is a loop, the threads of a GPU, or the walk that counts
//
// A row is read and written as x[i], with a position i that the walk supplies; an operand with one value per row as g[0]. A walk
// `over` a row has these functions:
//   over.fold<R>(f, rows...)   combines f(i) of all positions with R. This is the first read of `rows`: they may be prefetched.
//   over.each(f)               calls f(i) for all positions
//   over.mean(sum)             divides the sum by the length of the row
//   over.any(b)                true if b holds for any of the rows that are walked in step with this one
//   over.at(x, k)              returns element k
//   over.change(y, k, f)       replaces element k of y by f(y[k])
// An output may share memory with an operand that is not read after the output is written.

struct none {};  // stands for a weight or a bias that is not given
template <class W> constexpr bool is_given = !std::is_same_v<W, none>;

// Returns the largest element of a row. It may ignore NaN: the sum of exponentials propagates NaN anyway.
struct largest {
  template <class A> PB_HD static A identity() { return m::lowest<A>(); }
  template <class A> PB_HD static A combine(A a, A b) {
#if defined(__CUDA_ARCH__)  // a single instruction on a GPU
    if constexpr (std::is_same_v<A, float>) return fmaxf(a, b);
#endif
#if defined(PB_CUDA)  // ignores NaN on either side, because lanes that combine the same numbers must get the same
    if (b != b) return a;
#endif
    return m::select(a > b, a, b);
  }
};
template <class Over, class X> PB_HD auto largest_of(const Over& over, X x) {
  return over.template fold<largest>([=](auto i) { return x[i]; }, x);
}

// Returns the sum of exponentials of a row whose largest element is infinite.
template <class Over, class X> PB_HD auto ends_of(const Over& over, X x) {
  return over.template fold<sum_reduce>([=](auto i) {
    const auto z = x[i];
    using A = std::decay_t<decltype(z)>;
    return m::select(z <= A(0), A(0), A(z));
  });
}

#if defined(PB_CUDA)
#define PB_RARE PB_HD
#else
#define PB_RARE __attribute__((noinline, cold))  // keeps rare work out of the loops that are compiled around it
#endif
// The exponentials of a row, relative to that of its largest element, are 1 and numbers below 1. If their sum is below kSure, only one
// of them is 1, and what the others add to it is computed again without it, because they may be far below the rounding of 1.
template <class A> PB_HD auto is_sure(A sum) {
  constexpr double kSure = 1.0625;          // the logarithm of a larger sum is right to 8 ulps
  return (A(1) <= sum) & (sum < A(kSure));  // the sum of a row of -inf is 0
}
template <class Over, class Exponential> PB_RARE auto sum_of_others(const Over& over, Exponential exponential) {
  return over.template fold<sum_reduce>([=](auto i) {
    const auto e = exponential(i);
    using A = std::decay_t<decltype(e)>;
    return A(m::select(e < A(1), e, A(0)));
  });
}
// Returns the sum of the exponentials of a sure row without the largest; for other rows, any number.
template <class Over, class A, class Exponential> PB_HD A others_of(const Over& over, A sum, Exponential exponential) {
  return over.any(is_sure(sum)) ? A(sum_of_others(over, exponential)) : A(0);
}
template <class Over, class A> PB_HD A log_of_sum(const Over& over, A sum, A others) {
  const auto sure = is_sure(sum);
  const A log = m::log(sum);
  return over.any(sure) ? A(m::select(sure, A(m::log1p(others)), log)) : log;
}

// Computes log(sum(exp(x))) = top + log, and writes x[i] - top to y if it is given.
template <class A> struct LogSum {
  A top, log;
};
template <class Over, class X, class Y = none> PB_HD auto log_sum_exp(const Over& over, X x, Y y = {}) {
  auto top = largest_of(over, x);
  using A = decltype(top);
  const auto infinite = m::isinf(top);  // a row of -inf has the sum 0, one with +inf has +inf
  top = m::select(infinite, A(0), top);
  A sum = over.template fold<sum_reduce>([=](auto i) {
    const A z = x[i] - top;
    if constexpr (is_given<Y>) y[i] = z;
    return m::exp_nonpositive(z);
  });
  if (over.any(infinite)) {
    const A ends = ends_of(over, x);
    sum = m::select(infinite, ends, sum);
  }
  const A others = others_of(over, sum, [=](auto i) {
    if constexpr (is_given<Y>) return A(m::exp_nonpositive(A(y[i])));
    else return A(m::exp_nonpositive(A(x[i] - top)));
  });
  return LogSum<A>{top, log_of_sum(over, sum, others)};
}

struct Softmax {
  template <class Over, class X, class Y> PB_HD void operator()(const Over& over, X x, Y y) const {
    const auto top = largest_of(over, x);
    using A = std::decay_t<decltype(top)>;
    const A sum = over.template fold<sum_reduce>([=](auto i) { return y[i] = m::exp_nonpositive(A(x[i] - top)); });
    const A scale = A(1) / sum;
    over.each([=](auto i) { y[i] = y[i] * scale; });
  }
};

struct LogSoftmax {
  template <class Over, class X, class Y> PB_HD void operator()(const Over& over, X x, Y y) const {
    const auto log = log_sum_exp(over, x, y).log;
    over.each([=](auto i) { y[i] = y[i] - log; });
  }
};

struct LogSumExp {
  template <class Over, class X, class Y> PB_HD void operator()(const Over& over, X x, Y y) const {
    const auto sum = log_sum_exp(over, x);
    y[0] = sum.top + sum.log;
  }
};

struct SoftmaxPullback {
  template <class Over, class G, class Y, class GX> PB_HD void operator()(const Over& over, G g, Y y, GX gx) const {
    const auto dot = over.template fold<sum_reduce>([=](auto i) { return g[i] * y[i]; }, g, y);
    over.each([=](auto i) { gx[i] = y[i] * (g[i] - dot); });
  }
};

struct LogSoftmaxPullback {
  template <class Over, class G, class Y, class GX> PB_HD void operator()(const Over& over, G g, Y y, GX gx) const {
    const auto sum = over.template fold<sum_reduce>([=](auto i) { return g[i]; }, g, y);
    over.each([=](auto i) { gx[i] = g[i] - m::exp_nonpositive(y[i]) * sum; });
  }
};

struct LogSumExpPullback {
  template <class Over, class G, class X, class Y, class GX>
  PB_HD void operator()(const Over& over, G g, X x, Y y, GX gx) const {
    using A = std::decay_t<decltype(y[0])>;
    const A cotangent = g[0], size = y[0];
    const A log = m::select(m::isinf(size) & (size < A(0)), A(0), size);  // the gradient of a row of -inf is 0, not NaN
    over.each([=](auto i) { gx[i] = cotangent * m::exp_nonpositive(A(x[i] - log)); });
  }
};

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
  PB_HD A inverse(A eps) const { return m::rsqrt(A(variance + eps)); }
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

struct Variance {
  template <class Over, class X, class Y> PB_HD void operator()(const Over& over, X x, Y y) const {
    y[0] = spread_of(over, x).variance;
  }
};

template <class Over, class X, class A> PB_HD A inverse_size(const Over& over, X x, A eps) {
  return m::rsqrt(A(over.mean(over.template fold<sum_reduce>([=](auto i) { return A(x[i] * x[i]); }, x)) + eps));
}

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
    affine<true>(over, x, s.mean, s.inverse(eps), w, b, y);
  }
};
template <> struct Norm<false> {
  template <class Over, class X, class W, class B, class A, class Y>
  PB_HD void operator()(const Over& over, X x, W w, B b, A eps, Y y) const {
    affine<false>(over, x, A(0), inverse_size(over, x, eps), w, b, y);
  }
};

// With h = g w and z = (x - mean) r: gx = r (h - mean(h) - z mean(h z)), gweight = g z, gbias = g. The gradients of
// weight and bias are added to gw and gb. h is kept in gx if there is a weight.
template <bool kCentred> struct NormPullback;
template <> struct NormPullback<true> {
  template <class Over, class G, class X, class W, class A, class GX, class S>
  PB_HD void operator()(const Over& over, G g, X x, W w, A eps, GX gx, S gw, S gb) const {
    const Spread<A> s = spread_of(over, x, g);
    const A mean = s.mean, r = s.inverse(eps);
    const auto keep = [=](auto i) {
      if constexpr (is_given<W>) return A(gx[i] = g[i] * w[i]);
      else return A(g[i]);
    };
    const auto h = [=](auto i) {
      if constexpr (is_given<W>) return A(gx[i]);
      else return A(g[i]);
    };
    const A along = over.mean(over.template fold<sum_reduce>(keep));
    const A across = over.mean(over.template fold<sum_reduce>([=](auto i) { return A(h(i) * ((x[i] - mean) * r)); }));
    over.each([=](auto i) {
      const A z = (x[i] - mean) * r;
      gw[i] += g[i] * z;
      gb[i] += g[i];
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

// Returns (1 - s) * -log softmax(x)[label] + s * mean(-log softmax(x)), for smoothing s. sum: log_sum_exp of x.
template <class Over, class X, class A, class Label, class S>
PB_HD A cross_entropy_of(const Over& over, X x, LogSum<A> sum, Label label, S smoothing) {
  const A picked = over.at(x, label) - sum.top;
  if (smoothing == S(0)) return sum.log - picked;
  const A mean = over.mean(over.template fold<sum_reduce>([=](auto i) { return A(x[i] - sum.top); }));
  return sum.log - ((A(1) - smoothing) * picked + smoothing * mean);
}

// Turns the exponentials in gx into the gradient of the logits, g softmax(x) minus the target. sum: of the exponentials; others: that
// of a sure row without the largest. The probability of a sure class minus 1 is -others / sum, which p - 1 would round away.
template <class Over, class A, class Label, class S, class GX>
PB_HD void subtract_target(const Over& over, A g, A sum, A others, Label label, S smoothing, GX gx) {
  const A scale = g / sum;
  const auto sure = is_sure(sum);
  const A less = over.any(sure) ? A(A(0) - others * scale) : A(0);
  if (smoothing == S(0)) {
    over.each([=](auto i) { gx[i] = gx[i] * scale; });
    over.change(gx, label, [=](A a) { return m::select(sure & (a == scale), less, A(a - g)); });
  } else {
    const A everywhere = over.mean(A(g * smoothing)), here = g * (A(1) - smoothing);
    const A largest = over.any(sure) ? A(scale - everywhere) : A(0);
    const A rest = over.any(sure) ? A(((g - here) - everywhere) + less) : A(0);
    over.each([=](auto i) { gx[i] = gx[i] * scale - everywhere; });
    over.change(gx, label, [=](A a) { return m::select(sure & (a == largest), rest, A(a - here)); });
  }
}

template <class Over, class X, class A, class Label, class S, class GX>
PB_HD void cross_entropy_gradient(const Over& over, A g, X x, Label label, S smoothing, GX gx) {
  const A top = largest_of(over, x);
  const A sum = over.template fold<sum_reduce>([=](auto i) { return A(gx[i] = m::exp_nonpositive(A(x[i] - top))); });
  const A others = others_of(over, sum, [=](auto i) { return A(gx[i]); });
  subtract_target(over, g, sum, others, label, smoothing, gx);
}

// Computes the loss and its gradient with one exponential per element and the bits of the two functions above. Returns the loss.
template <class Over, class X, class A, class Label, class S, class GX>
PB_HD A cross_entropy_and_gradient(const Over& over, A g, X x, Label label, S smoothing, GX gx) {
  const A top = largest_of(over, x);
  const auto infinite = m::isinf(top);
  LogSum<A> sum{m::select(infinite, A(0), top), A(0)};
  if (over.any(infinite)) sum.log = m::log(ends_of(over, x));
  const A rest = cross_entropy_of(over, x, LogSum<A>{sum.top, A(0)}, label, smoothing);
  const A total = over.template fold<sum_reduce>([=](auto i) { return A(gx[i] = m::exp_nonpositive(A(x[i] - sum.top))); });
  const A others = others_of(over, total, [=](auto i) { return A(gx[i]); });
  subtract_target(over, g, A(m::select(infinite, A(top - top), total)), others, label, smoothing, gx);
  return m::select(infinite, sum.log, log_of_sum(over, total, others)) + rest;
}

}  // namespace pb::kernels
