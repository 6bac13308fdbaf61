// Cross entropy of rows of logits with class numbers, and its pullback.
#include "cpu/index.h"
#include "cpu/rows.h"

namespace pb::cpu {
namespace {

// -log softmax(x)[label], mixed with the mean of -log softmax(x) over all classes: (1 - s) and s parts of it.
template <class A> A cross_entropy_row(int64_t n, Row<A> x, int64_t label, A smoothing) {
  const LogSum<A> sum = log_sum_exp(n, x, [](int64_t, A) {});
  const A picked = x[label] - sum.top;
  if (smoothing == A(0)) return sum.log - picked;
  const A mean = mean_of(sum_of<A>(n, [x, sum](int64_t i) { return A(x[i] - sum.top); }), n);
  return sum.log - ((A(1) - smoothing) * picked + smoothing * mean);
}

template <class A>
void cross_entropy_pullback_row(int64_t n, A g, Row<A> x, int64_t label, A smoothing, A* __restrict gx) {
  const A top = largest_of(n, x);
  const A scale = g / sum_of<A>(n, [x, gx, top](int64_t i) { return gx[i] = m::exp_nonpositive(A(x[i] - top)); });
  if (smoothing == A(0)) {
    for (int64_t i = 0; i < n; ++i) gx[i] = gx[i] * scale;
    gx[label] = gx[label] - g;
  } else {
    const A everywhere = mean_of(A(g * smoothing), n);
    for (int64_t i = 0; i < n; ++i) gx[i] = gx[i] * scale - everywhere;
    gx[label] = gx[label] - g * (A(1) - smoothing);
  }
}

// The labels, all of them looked at before any work: the first that is wrong is reported, whatever the threads do.
const int64_t* read_labels(const Launch& launch, const View& labels, int64_t classes, Scratch& scratch) {
  const View all = contiguous_as(DType::i64, labels, scratch);
  const int64_t* label = all.as<const int64_t>();
  for (int64_t k = 0; k < labels.shape[0]; ++k)
    if (label[k] != launch.ints[0] && (label[k] < 0 || label[k] >= classes)) throw kernels::OutOfRange{k, label[k], classes};
  return label;
}

constexpr int64_t kExpWork = 4;  // an exponential takes as long as so many simple elements

void run_cross_entropy(const Launch& launch) {
  const View &x = launch.in(0), &out = launch.out();
  const int64_t n = row_length(x), ignored = launch.ints[0];
  Scratch scratch;
  const int64_t* label = read_labels(launch, launch.in(1), n, scratch);
  visit_row(x, [&](auto tag) {
    using C = decltype(tag);
    const C smoothing = C(launch.reals[0]);
    for_rows(x, kExpWork, [&](int64_t begin, int64_t end) {
      Scratch near;
      const Rows<C> rows(x, near);
      const RowsOut<C> losses(out, near, kFarHidden);
      for (int64_t k = begin; k < end; ++k) {
        *losses.open(k) = label[k] == ignored ? C(0) : cross_entropy_row(n, rows.read(k), label[k], smoothing);
        losses.close(k);
      }
    });
  });
}

void run_cross_entropy_pullback(const Launch& launch) {
  const View &g = launch.in(0), &x = launch.in(1), &out = launch.out();
  const int64_t n = row_length(x), ignored = launch.ints[0];
  Scratch scratch;
  const int64_t* label = read_labels(launch, launch.in(2), n, scratch);
  visit_row(x, [&](auto tag) {
    using C = decltype(tag);
    const C smoothing = C(launch.reals[0]);
    for_rows(x, kExpWork, [&](int64_t begin, int64_t end) {
      Scratch near;
      const Rows<C> rows(x, near), cotangents(g, near);
      const RowsOut<C> gradients(out, near, kFarHidden);
      for (int64_t k = begin; k < end; ++k) {
        C* gx = gradients.open(k);
        if (label[k] == ignored) std::fill_n(gx, n, C(0));
        else cross_entropy_pullback_row(n, cotangents.read(k)[0], rows.read(k), label[k], smoothing, gx);
        gradients.close(k);
      }
    });
  });
}

void cost_cross_entropy(const Launch& launch, Cost& cost) {
  const RowCost row = measure_row([&launch](int64_t n) {
    const Counting x[16];
    (void)cross_entropy_row(n, Row<Counting>(x), 0, Counting(launch.reals[0]));
  });
  add_rows(row, launch.in(0), cost);
}

void cost_cross_entropy_pullback(const Launch& launch, Cost& cost) {
  const RowCost row = measure_row([&launch](int64_t n) {
    const Counting x[16];
    Counting gx[16];
    cross_entropy_pullback_row(n, Counting(1), Row<Counting>(x), 0, Counting(launch.reals[0]), gx);
  });
  add_rows(row, launch.in(1), cost);
}

}  // namespace

const Kernel cross_entropy{"cross_entropy", run_cross_entropy, cost_cross_entropy};
const Kernel cross_entropy_pullback{"cross_entropy_pullback", run_cross_entropy_pullback, cost_cross_entropy_pullback};

}  // namespace pb::cpu
