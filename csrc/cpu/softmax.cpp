// softmax, log_softmax, logsumexp, and their pullbacks.
#include <cmath>

#include "cpu/rows.h"

namespace pb::cpu {
namespace {

template <class A> void softmax_row(int64_t n, Row<A> x, A* __restrict y) {
  const A top = largest_of(n, x);
  const A scale = A(1) / sum_of<A>(n, [x, y, top](int64_t i) { return y[i] = m::exp_nonpositive(A(x[i] - top)); });
  for (int64_t i = 0; i < n; ++i) y[i] = y[i] * scale;
}

template <class A> void log_softmax_row(int64_t n, Row<A> x, A* __restrict y) {
  const A log = log_sum_exp(n, x, [y](int64_t i, A z) { y[i] = z; }).log;
  for (int64_t i = 0; i < n; ++i) y[i] = y[i] - log;
}

template <class A> void logsumexp_row(int64_t n, Row<A> x, A* y) {
  const LogSum<A> sum = log_sum_exp(n, x, [](int64_t, A) {});
  *y = sum.top + sum.log;
}

template <class A> void softmax_pullback_row(int64_t n, Row<A> g, Row<A> y, A* __restrict gx) {
  const A dot = sum_of<A>(n, [g, y](int64_t i) { return g[i] * y[i]; }, Both{g.ahead(), y.ahead()});
  for (int64_t i = 0; i < n; ++i) gx[i] = y[i] * (g[i] - dot);
}

template <class A> void log_softmax_pullback_row(int64_t n, Row<A> g, Row<A> y, A* __restrict gx) {
  const A sum = sum_of<A>(n, [g](int64_t i) { return g[i]; }, Both{g.ahead(), y.ahead()});
  for (int64_t i = 0; i < n; ++i) gx[i] = g[i] - m::exp_nonpositive(y[i]) * sum;
}

template <class A> void logsumexp_pullback_row(int64_t n, A g, Row<A> x, A y, A* __restrict gx) {
  y = y == A(-INFINITY) ? A(0) : y;  // a row of -inf has no direction
  for (int64_t i = 0; i < n; ++i) gx[i] = g * m::exp_nonpositive(A(x[i] - y));
}

// The rows as function objects, so that one walk takes each, on numbers and on the counting scalar.
struct Softmax {
  template <class A> void operator()(int64_t n, Row<A> x, A* y) const { softmax_row(n, x, y); }
};
struct LogSoftmax {
  template <class A> void operator()(int64_t n, Row<A> x, A* y) const { log_softmax_row(n, x, y); }
};
struct LogSumExp {
  template <class A> void operator()(int64_t n, Row<A> x, A* y) const { logsumexp_row(n, x, y); }
};
struct SoftmaxPullback {
  template <class A> void operator()(int64_t n, Row<A> g, Row<A> y, A* gx) const { softmax_pullback_row(n, g, y, gx); }
};
struct LogSoftmaxPullback {
  template <class A> void operator()(int64_t n, Row<A> g, Row<A> y, A* gx) const { log_softmax_pullback_row(n, g, y, gx); }
};
struct LogSumExpPullback {
  template <class A> void operator()(int64_t n, Row<A> g, Row<A> x, Row<A> y, A* gx) const {
    logsumexp_pullback_row(n, g[0], x, y[0], gx);
  }
};

constexpr int64_t kExpWork = 4;  // an exponential takes as long as so many simple elements

// A row of the output from the same row of each input.
template <class F, size_t... K> void walk(const Launch& launch, const View& x, std::index_sequence<K...>) {
  const int64_t n = row_length(x);
  visit_row(x, [&](auto tag) {
    using C = decltype(tag);
    for_rows(x, kExpWork, [&](int64_t begin, int64_t end) {
      Scratch scratch;
      const RowsOut<C> out(launch.out(), scratch, kFarHidden);
      const Rows<C> in[] = {Rows<C>(launch.in(int(K)), scratch)...};
      for (int64_t k = begin; k < end; ++k) {
        F()(n, in[K].read(k)..., out.open(k));
        out.close(k);
      }
    });
  });
}

// x, the operand that has the rows, is the last input of softmax and its like, and the middle one of three.
template <int kInputs> const View& rows_of(const Launch& launch) { return launch.in(kInputs == 3 ? 1 : kInputs - 1); }

template <class F, int kInputs> void run_rows(const Launch& launch) {
  const View& x = rows_of<kInputs>(launch);
  if (row_length(x) > 0) return walk<F>(launch, x, std::make_index_sequence<kInputs>());
  const View& out = launch.out();  // of empty rows: nothing, or -inf for each
  const double nothing = -INFINITY;
  for (int64_t k = 0; k < out.size(); ++k)
    store(Compute::f64, out.dtype, &nothing, 1, out.data + k * item_size(out.dtype), item_size(out.dtype));
}

template <class F, size_t... K> RowCost measure(std::index_sequence<K...>) {
  return measure_row([](int64_t n) {
    Counting in[sizeof...(K)][16], out[16];
    F()(n, Row<Counting>(in[K])..., static_cast<Counting*>(out));
  });
}
template <class F, int kInputs> void rows_cost(const Launch& launch, Cost& cost) {
  static const RowCost row = measure<F>(std::make_index_sequence<kInputs>());
  add_rows(row, rows_of<kInputs>(launch), cost);
}

template <class F, int kInputs> constexpr Kernel kernel(const char* name) {
  return {name, run_rows<F, kInputs>, rows_cost<F, kInputs>};
}

}  // namespace

const Kernel softmax = kernel<Softmax, 1>("softmax");
const Kernel log_softmax = kernel<LogSoftmax, 1>("log_softmax");
const Kernel logsumexp = kernel<LogSumExp, 1>("logsumexp");
const Kernel softmax_pullback = kernel<SoftmaxPullback, 2>("softmax_pullback");
const Kernel log_softmax_pullback = kernel<LogSoftmaxPullback, 2>("log_softmax_pullback");
const Kernel logsumexp_pullback = kernel<LogSumExpPullback, 3>("logsumexp_pullback");

}  // namespace pb::cpu
