// Access to rows of operands, one at a time, for the loops of row ops.
#pragma once
#include <algorithm>

#include "cpu/nontemporal.h"
#include "cpu/pool.h"
#include "cpu/reduce.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"
#include "families/rows.h"

namespace pb::cpu {

using kernels::row_count;
using kernels::row_length;

constexpr int64_t kRowGrain = 8 * 1024;  // the fewest elements per thread: about 5 us
constexpr int64_t kExpWork = 4;          // the time of an exponential, in simple elements

// A row to read, and the row that is read after it, which is prefetched meanwhile.
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
  void operator()(int64_t i, int64_t n) const { p(i, n), q(i, n); }
};
template <class P, class Q> Both(P, Q) -> Both<P, Q>;

// The walk of families/rows.h over one row, by one thread.
struct Loop {
  int64_t n;

  template <class R, class F, class... Rows> auto fold(const F& f, const Rows&... rows) const {
    return reduce_row<R, std::decay_t<decltype(f(n))>>(n, f, ahead(rows...));
  }
  template <class F> void each(const F& f) const {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) f(i);
  }
  template <class A> A mean(A sum) const { return sum / A(double(n)); }
  bool any(bool b) const { return b; }
  template <class A> A at(const Row<A>& x, int64_t k) const { return x[k]; }
  template <class A, class F> void change(A* y, int64_t k, const F& f) const { y[k] = f(y[k]); }

 private:
  static NoPrefetch ahead() { return {}; }
  template <class A> static Prefetch<A> ahead(const Row<A>& x) { return x.ahead(); }
  template <class A> static auto ahead(const Row<A>& x, const Row<A>& y) { return Both{x.ahead(), y.ahead()}; }
};

// Reads the rows of an operand (…, n), one at a time, as contiguous elements of the type that they are computed in: in place if
// possible, otherwise through a buffer.
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

  // The first row and the distance between two rows in elements, if the rows are evenly spaced and can be read in place; otherwise
  // data is null.
  struct Even {
    C* data;
    int64_t step;
  };
  Even even() const {
    if (!direct_ || lead_.ndim > 1 || next_ % int64_t(sizeof(C)) != 0) return {nullptr, 0};
    return {reinterpret_cast<C*>(lead_.data), next_ / int64_t(sizeof(C))};
  }

  View lead_;
  int64_t n_, stride_, next_;
  Compute compute_;
  bool direct_;
  C* buffer_ = nullptr;
};

// Writes rows: open(k) returns the memory for row k, and close(k) moves it to the operand if it was a buffer.
template <class C> class RowsOut : protected Rows<C> {
  using Base = Rows<C>;
  using Base::buffer_, Base::direct_, Base::n_, Base::address;

 public:
  // Outputs of at least `nontemporal` bytes are written by non-temporal stores.
  RowsOut(const View& v, Scratch& scratch, int64_t nontemporal)
      : Base(v, scratch), nontemporal_(direct_ && n_ >= 256 && v.bytes() >= nontemporal) {
    if (nontemporal_) buffer_ = scratch.take<C>(n_);
  }
  RowsOut(const RowsOut&) = delete;
  ~RowsOut() {
    if (nontemporal_) nontemporal_fence();
  }

  C* open(int64_t k) const { return direct_ && !nontemporal_ ? reinterpret_cast<C*>(address(k)) : buffer_; }
  void close(int64_t k) const {
    if (nontemporal_) store_nontemporal(address(k), reinterpret_cast<const char*>(buffer_), n_ * int64_t(sizeof(C)));
    else if (!direct_) store(this->compute_, this->lead_.dtype, buffer_, n_, address(k), this->stride_);
  }

 private:
  bool nontemporal_;
};

// Calls f(C()), where C is the type in which rows of x are computed.
template <class F> void visit_row(const View& x, F&& f) {
  if (compute_type(x.dtype) == Compute::f32) f(float());
  else f(double());
}

// Calls body(begin, end) for all rows of x, in parallel. `work` is the time per element relative to that of a few simple
// operations.
template <class Body> void for_rows(const View& x, int64_t work, const Body& body) {
  const int64_t n = row_length(x);
  parallel_for(row_count(x), std::max<int64_t>(1, kRowGrain / std::max<int64_t>(1, n * work)), body);
}

}  // namespace pb::cpu
