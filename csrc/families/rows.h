// Ops that own a row: softmax and its relatives, the norms, cross entropy. A row is the last axis of an operand.
#pragma once
#include "launch/door.h"
#include "math/counting.h"
#include "math/exp_nonpositive.h"
#include "math/reductions.h"

namespace pb::kernels {

// The signatures in rows.cpp state operands, ints and reals. Inputs have any strides; outputs are contiguous.
extern const Kernel softmax, log_softmax, logsumexp;
extern const Kernel softmax_pullback, log_softmax_pullback, logsumexp_pullback;
extern const Kernel layer_norm, layer_norm_pullback, rms_norm, rms_norm_pullback;

// variance: the mean squared distance from the mean. deviation: the root of a factor times the variance, for numbers of any size.
extern const Kernel variance, deviation;

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
void run_deviation(const Launch& launch);
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

// Rows whose largest element is infinite have the limits of the functions, where there is one. An element that alone is +inf has the
// probability 1, and the others have 0. If several elements are +inf, each of them has NaN, and the others have 0. All elements of a
// row of -inf have NaN.

// Returns x - top, which is 0 for the element that alone is infinite.
template <class A, class Mask> PB_HD A below(A x, A top, Mask lone) { return m::select((x == top) & lone, A(0), A(x - top)); }
// True if one element alone is +inf. sum: that of the exponentials, of which the largest is 1 if it is infinite, too.
template <class A> PB_HD auto is_lone(A sum, A top) { return (sum == A(1)) & (top > A(0)); }
// Returns e^(x - top), and 1 for the largest elements of any row.
template <class A> PB_HD A exp_below(A x, A top) { return m::exp_nonpositive(m::select(x == top, A(0), A(x - top))); }

// Returns what x - top is for the largest elements: 0, or NaN if the row is infinite and has no limit.
template <class Over, class X, class A> PB_HD A zero_of(const Over& over, X x, A top) {
  if (!over.any(m::isinf(top))) return A(0);
  const A count = over.template fold<sum_reduce>([=](auto i) { return A(m::select(x[i] == top, A(1), A(0))); });
  return m::select(is_lone(count, top), A(0), A(top - top));
}

// log(sum(exp(x))) = top + log. zero: see zero_of.
template <class A> struct LogSum {
  A top, log, zero;
  PB_HD A below(A x) const { return m::select(x == top, zero, A(x - top)); }
};
// Returns the LogSum of x, and writes x - top to y if it is given, with 0 for the largest elements of any row.
template <class Over, class X, class Y = none> PB_HD auto log_sum_exp(const Over& over, X x, Y y = {}) {
  const auto top = largest_of(over, x);
  using A = std::decay_t<decltype(top)>;
  const A zero = zero_of(over, x, A(top));
  const A sum = over.template fold<sum_reduce>([=](auto i) {
    const A z = m::select(x[i] == top, A(0), A(x[i] - top));
    if constexpr (is_given<Y>) y[i] = z;
    return m::exp_nonpositive(z);
  });
  const A others = others_of(over, sum, [=](auto i) {
    if constexpr (is_given<Y>) return A(m::exp_nonpositive(A(y[i])));
    else return exp_below(A(x[i]), A(top));
  });
  return LogSum<A>{top, log_of_sum(over, sum, others), zero};
}

// The exponentials of the largest elements are 1, and NaN if zero is.
template <class A> PB_HD A exp_of_largest(A zero) { return m::select(zero == A(0), A(1), zero); }

struct Softmax {
  template <class Over, class X, class Y> PB_HD void operator()(const Over& over, X x, Y y) const {
    const auto top = largest_of(over, x);
    using A = std::decay_t<decltype(top)>;
    const A one = exp_of_largest(zero_of(over, x, A(top)));
    const A sum = over.template fold<sum_reduce>([=](auto i) { return A(y[i] = exp_below(A(x[i]), A(top))); });
    const A scale = A(1) / sum;
    over.each([=](auto i) { y[i] = m::select(y[i] == A(1), one, A(y[i])) * scale; });
  }
};

struct LogSoftmax {
  template <class Over, class X, class Y> PB_HD void operator()(const Over& over, X x, Y y) const {
    const auto sum = log_sum_exp(over, x, y);
    using A = std::decay_t<decltype(sum.log)>;
    over.each([=](auto i) { y[i] = m::select(y[i] == A(0), sum.zero, A(y[i])) - sum.log; });
  }
};

struct LogSumExp {
  template <class Over, class X, class Y> PB_HD void operator()(const Over& over, X x, Y y) const {
    const auto sum = log_sum_exp(over, x);
    y[0] = sum.top + sum.log;
  }
};

// Pullbacks give 0 for a cotangent of 0, in rows with NaN, too.
template <class A, class Over, class G, class Y, class GX>
PB_RARE void softmax_pullback_of_nan(const Over& over, G g, Y y, GX gx) {
  const A dot = over.template fold<sum_reduce>([=](auto i) { return A(m::select(g[i] == A(0), A(g[i]), A(g[i] * y[i]))); });
  over.each([=](auto i) {
    const A z = g[i] - dot;
    gx[i] = m::select(z == A(0), z, A(y[i] * z));
  });
}
struct SoftmaxPullback {
  template <class Over, class G, class Y, class GX> PB_HD void operator()(const Over& over, G g, Y y, GX gx) const {
    const auto dot = over.template fold<sum_reduce>([=](auto i) { return g[i] * y[i]; }, g, y);
    using A = std::decay_t<decltype(dot)>;
    if (over.any(dot != dot)) return softmax_pullback_of_nan<A>(over, g, y, gx);
    over.each([=](auto i) { gx[i] = y[i] * (g[i] - dot); });
  }
};

// g - p sum(g). An element of a probability p above 1/2 has (1 - p) g - p (sum(g) - g): what g and p sum(g) have in common would round
// the small 1 - p away.
struct LogSoftmaxPullback {
  template <class Over, class G, class Y, class GX> PB_HD void operator()(const Over& over, G g, Y y, GX gx) const {
    const auto sum = over.template fold<sum_reduce>([=](auto i) { return g[i]; }, g, y);
    using A = std::decay_t<decltype(sum)>;
    over.each([=](auto i) {
      const A z = g[i], log = y[i], p = m::exp_nonpositive(log);
      const A sure = m::expm1_nonpositive(log) * z + p * (sum - z);
      gx[i] = m::select(sum == A(0), z, A(m::select(p > A(0.5), A(A(0) - sure), A(z - p * sum))));
    });
  }
};

// log: y, or 0 if y is -inf, so that the gradient of a row of -inf is 0.
template <class Over, class A, class X, class GX>
PB_RARE void logsumexp_pullback_at_infinity(const Over& over, A g, X x, A log, GX gx) {
  const A count = over.template fold<sum_reduce>([=](auto i) { return A(m::select(x[i] == log, A(1), A(0))); });
  const auto lone = is_lone(count, log);
  over.each([=](auto i) { gx[i] = m::select(g == A(0), g, A(g * m::exp_nonpositive(below(A(x[i]), log, lone)))); });
}
struct LogSumExpPullback {
  template <class Over, class G, class X, class Y, class GX>
  PB_HD void operator()(const Over& over, G g, X x, Y y, GX gx) const {
    using A = std::decay_t<decltype(y[0])>;
    const A cotangent = g[0], size = y[0];
    const A log = m::select(m::isinf(size) & (size < A(0)), A(0), size);
    if (over.any(m::isinf(log) | (log != log))) return logsumexp_pullback_at_infinity(over, cotangent, x, log, gx);
    over.each([=](auto i) { gx[i] = cotangent * m::exp_nonpositive(A(x[i] - log)); });
  }
};

// Returns (1 - s) * -log softmax(x)[label] + s * mean(-log softmax(x)), for smoothing s. sum: log_sum_exp of x.
template <class Over, class X, class A, class Label, class S>
PB_HD A cross_entropy_of(const Over& over, X x, LogSum<A> sum, Label label, S smoothing) {
  const A picked = sum.below(A(over.at(x, label)));
  if (smoothing == S(0)) return sum.log - picked;
  const A mean = over.mean(over.template fold<sum_reduce>([=](auto i) { return sum.below(A(x[i])); }));
  return sum.log - ((A(1) - smoothing) * picked + smoothing * mean);
}

// Turns the exponentials in gx into the gradient of the logits, g softmax(x) minus the target. sum: of the exponentials; others: that
// of a sure row without the largest. The probability of a sure class minus 1 is -others / sum, which p - 1 would round away.
template <class Over, class A, class Label, class S, class GX>
PB_HD void subtract_target(const Over& over, A g, A sum, A others, A one, Label label, S smoothing, GX gx) {
  const A scale = g / sum;
  const auto sure = is_sure(sum);
  const A less = over.any(sure) ? A(A(0) - others * scale) : A(0);
  if (smoothing == S(0)) {
    over.each([=](auto i) { gx[i] = m::select(gx[i] == A(1), one, A(gx[i])) * scale; });
    over.change(gx, label, [=](A a) { return m::select(sure & (a == scale), less, A(a - g)); });
  } else {
    const A everywhere = over.mean(A(g * smoothing)), here = g * (A(1) - smoothing);
    const A largest = over.any(sure) ? A(scale - everywhere) : A(0);
    const A rest = over.any(sure) ? A(((g - here) - everywhere) + less) : A(0);
    over.each([=](auto i) { gx[i] = m::select(gx[i] == A(1), one, A(gx[i])) * scale - everywhere; });
    over.change(gx, label, [=](A a) { return m::select(sure & (a == largest), rest, A(a - here)); });
  }
}

template <class Over, class Mask, class GX> PB_HD void clear(const Over& over, Mask rows, GX gx) {
  if (!over.any(rows)) return;
  over.each([=](auto i) {
    using A = std::decay_t<decltype(gx[i])>;
    gx[i] = m::select(rows, A(0), gx[i]);
  });
}
template <class Over, class X, class A, class Label, class S, class GX>
PB_HD void cross_entropy_gradient(const Over& over, A g, X x, Label label, S smoothing, GX gx) {
  const A top = largest_of(over, x), zero = zero_of(over, x, top);
  const A sum = over.template fold<sum_reduce>([=](auto i) { return A(gx[i] = exp_below(A(x[i]), top)); });
  const A others = others_of(over, sum, [=](auto i) { return A(gx[i]); });
  subtract_target(over, g, sum, others, exp_of_largest(zero), label, smoothing, gx);
  clear(over, (m::isinf(top) | (sum != sum)) & (g == A(0)), gx);
}

// Computes the loss and its gradient with one exponential per element and the bits of the two functions above. Returns the loss.
template <class Over, class X, class A, class Label, class S, class GX>
PB_HD A cross_entropy_and_gradient(const Over& over, A g, X x, Label label, S smoothing, GX gx) {
  const A top = largest_of(over, x), zero = zero_of(over, x, top);
  const A rest = cross_entropy_of(over, x, LogSum<A>{top, A(0), zero}, label, smoothing);
  const A sum = over.template fold<sum_reduce>([=](auto i) { return A(gx[i] = exp_below(A(x[i]), top)); });
  const A others = others_of(over, sum, [=](auto i) { return A(gx[i]); });
  subtract_target(over, g, sum, others, exp_of_largest(zero), label, smoothing, gx);
  clear(over, (m::isinf(top) | (sum != sum)) & (g == A(0)), gx);
  return log_of_sum(over, sum, others) + rest;
}

}  // namespace pb::kernels
