// Ops that own a row: softmax and its relatives, the norms, cross entropy. A row is the last axis of an operand.
#pragma once
#include <algorithm>

#include "cpu/far.h"
#include "cpu/pool.h"
#include "cpu/reduce.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"
#include "math/counting.h"
#include "math/exp_nonpositive.h"
#include "math/functors.h"

namespace pb::cpu {

constexpr int64_t kRowGrain = 8 * 1024;  // elements of a thread's share: about 5 us

// A row to be read, and the one that is read after it, which is asked for meanwhile.
template <class A> struct Row {
  const A *data, *next;
  Row(const A* row, const A* after) : data(row), next(after) {}
  Row(const A* row) : Row(row, row) {}
  const A& operator[](int64_t i) const { return data[i]; }
  Prefetch<A> ahead() const { return {next}; }
};

template <class P, class Q> struct Both {
  P p;
  Q q;
  void operator()(int64_t i) const { p(i), q(i); }
};
template <class P, class Q> Both(P, Q) -> Both<P, Q>;

// The rows of an operand (…, n), one at a time, as contiguous elements of the type that they are computed in: where they
// lie, or through a buffer.
template <class C> class Rows {
 public:
  Rows(const View& v, Scratch& scratch) : lead_(v), n_(v.shape[v.ndim - 1]), stride_(v.stride[v.ndim - 1]) {
    --lead_.ndim;
    collapse(&lead_, 1);
    compute_ = std::is_same_v<C, float> ? Compute::f32 : std::is_same_v<C, double> ? Compute::f64 : Compute::i64;
    direct_ = v.dtype == storage_of(compute_) && (n_ <= 1 || stride_ == int64_t(sizeof(C)));
    if (!direct_) buffer_ = scratch.take<C>(n_);
    next_ = lead_.ndim ? lead_.stride[lead_.ndim - 1] : 0;
  }

  Row<C> read(int64_t k) const {
    char* row = address(k);
    if (direct_) return {reinterpret_cast<const C*>(row), reinterpret_cast<const C*>(row + next_)};
    load(lead_.dtype, compute_, row, stride_, n_, buffer_);
    return buffer_;
  }

 protected:
  char* address(int64_t k) const {
    char* p = lead_.data;
    for (int d = lead_.ndim - 1; d > 0; --d) p += k % lead_.shape[d] * lead_.stride[d], k /= lead_.shape[d];
    return lead_.ndim ? p + k * lead_.stride[0] : p;
  }

  View lead_;
  int64_t n_, stride_, next_;
  Compute compute_;
  bool direct_;
  C* buffer_ = nullptr;
};

// Rows to be written: `open` gives the place for row k, `close` puts it where it belongs.
template <class C> class RowsOut : Rows<C> {
  using Base = Rows<C>;
  using Base::buffer_, Base::direct_, Base::n_, Base::address;

 public:
  // From `far` bytes on past the caches.
  RowsOut(const View& v, Scratch& scratch, int64_t far) : Base(v, scratch), far_(direct_ && n_ >= 256 && v.bytes() >= far) {
    if (far_) buffer_ = scratch.take<C>(n_);
  }
  RowsOut(const RowsOut&) = delete;
  ~RowsOut() {
    if (far_) far_fence();
  }

  C* open(int64_t k) const { return direct_ && !far_ ? reinterpret_cast<C*>(address(k)) : buffer_; }
  void close(int64_t k) const {
    if (far_) write_far(address(k), reinterpret_cast<const char*>(buffer_), n_ * int64_t(sizeof(C)));
    else if (!direct_) store(this->compute_, this->lead_.dtype, buffer_, n_, address(k), this->stride_);
  }

 private:
  bool far_;
};

inline int64_t row_length(const View& v) { return v.shape[v.ndim - 1]; }
inline int64_t row_count(const View& v) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < v.ndim; ++d) rows *= v.shape[d];
  return rows;
}

// Calls f(C()) with the type that a row of x is computed in.
template <class F> void visit_row(const View& x, F&& f) {
  if (compute_type(x.dtype) == Compute::f32) f(float());
  else f(double());
}

// body(begin, end) for all rows of x that have elements, in parallel; `work` is how much an element takes, next to a few
// operations.
template <class Body> void for_rows(const View& x, int64_t work, const Body& body) {
  const int64_t n = row_length(x);
  parallel_for(row_count(x), std::max<int64_t>(1, kRowGrain / std::max<int64_t>(1, n * work)), body);
}

template <class A, class At, class Ahead = NoPrefetch> A sum_of(int64_t n, const At& at, const Ahead& ahead = {}) {
  return fold_row<sum_reduce, A>(n, at, ahead);
}
// The largest element, but for NaN, which may get lost: it comes back with the sum of exponentials.
struct largest {
  template <class A> PB_HD static A combine(A a, A b) { return a > b ? a : b; }
};
template <class A> A largest_of(int64_t n, Row<A> x) {
  return fold_row<largest, A>(n, [x](int64_t i) { return x[i]; }, x.ahead());
}
// log(sum(exp(x))) = top + log. visit(i, x[i] - top) is called on the way.
template <class A> struct LogSum {
  A top, log;
};
template <class A, class Visit> LogSum<A> log_sum_exp(int64_t n, Row<A> x, const Visit& visit) {
  const A top = largest_of(n, x);
  if (m::isinf(top))  // a row of -inf has the sum 0, one with +inf has +inf
    return {A(0), m::log(sum_of<A>(n, [x, &visit](int64_t i) { return visit(i, x[i]), m::exp(x[i]); }))};
  const A sum = sum_of<A>(n, [x, top, &visit](int64_t i) {
    const A z = x[i] - top;
    visit(i, z);
    return m::exp_nonpositive(z);
  });
  return {top, m::log(sum)};
}
template <class A> A mean_of(A sum, int64_t n) { return sum / A(double(n)); }

// What the formulas of a row cost: they run on the counting scalar for two lengths, and the count is linear in between.
struct RowCost {
  int64_t flops[2], special[2];  // of a row, of each of its elements
};
template <class F> RowCost measure_row(F&& row_of_length) {
  constexpr int64_t kShort = 5, kLong = 9;
  int64_t counts[2][2];
  for (int k = 0; k < 2; ++k) {
    Counting::reset();
    row_of_length(k ? kLong : kShort);
    counts[k][0] = Counting::flops, counts[k][1] = Counting::special;
  }
  Counting::reset();
  RowCost cost;
  for (int s = 0; s < 2; ++s) {
    const int64_t element = (counts[1][s] - counts[0][s]) / (kLong - kShort);
    (s ? cost.special : cost.flops)[1] = element;
    (s ? cost.special : cost.flops)[0] = counts[0][s] - kShort * element;
  }
  return cost;
}
inline void add_rows(const RowCost& row, const View& x, Cost& cost) {
  if (row_length(x) == 0) return;
  cost.flops += row_count(x) * row.flops[0] + x.size() * row.flops[1];
  cost.special_ops += row_count(x) * row.special[0] + x.size() * row.special[1];
}

// All operands have the rows of x; those of one value a row have a last axis of length one. Outputs are contiguous.
// softmax, log_softmax: out: y. in: x.         logsumexp: out: y, one value a row. in: x.
// softmax_pullback, log_softmax_pullback: out: gx. in: g, y.
// logsumexp_pullback: out: gx. in: g and y, one value a row each, in between x.
extern const Kernel softmax, log_softmax, logsumexp;
extern const Kernel softmax_pullback, log_softmax_pullback, logsumexp_pullback;

// reals[0]: eps. ints: whether there is a weight, and a bias, (n,) each.
// out: y. in: x, weight, bias; or out: gx, gweight, gbias. in: g, x, weight. Without gbias for rms_norm.
extern const Kernel layer_norm, layer_norm_pullback, rms_norm, rms_norm_pullback;

// out: the loss of each row. in: logits, labels. The pullback: out: glogits. in: g, logits, labels.
// ints[0]: the label of rows to be left out. reals[0]: the share of the target that is spread over all classes.
// Throws kernels::OutOfRange.
extern const Kernel cross_entropy, cross_entropy_pullback;

}  // namespace pb::cpu
