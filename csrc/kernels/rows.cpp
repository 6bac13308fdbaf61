// The kernels that own a row, and what they cost: their formulas run on the scalar that counts.
#include "kernels/rows.h"

#include "kernels/row_formulas.h"

namespace pb::kernels {
namespace {

// A row that is walked to be counted.
struct Counted {
  int64_t n;

  template <class R, class F, class... Rows> Counting fold(const F& f, const Rows&...) const {
    Counting a = f(int64_t{0});
    for (int64_t i = 1; i < n; ++i) a = R::combine(a, Counting(f(i)));
    return a;
  }
  template <class F> void each(const F& f) const {
    for (int64_t i = 0; i < n; ++i) f(i);
  }
  Counting mean(Counting sum) const { return sum / Counting(double(n)); }
  bool any(bool b) const { return b; }
  Counting at(const Counting* x, int64_t k) const { return x[k]; }
  template <class F> void change(Counting* y, int64_t k, const F& f) const { y[k] = f(y[k]); }
};

// What the formulas of a row cost: they run for two lengths, and the count is linear in between.
struct RowCost {
  Counts row, element;  // and of each of its elements
};
template <class F> RowCost measure_row(F&& row_of_length) {
  constexpr int64_t kShort = 5, kLong = 9;
  const Counts low = counts_of([&] { row_of_length(kShort); }), high = counts_of([&] { row_of_length(kLong); });
  RowCost cost;
  for (const auto count : {&Counts::adds, &Counts::multiplies, &Counts::fmas, &Counts::special}) {
    cost.element.*count = (high.*count - low.*count) / (kLong - kShort);
    cost.row.*count = low.*count - kShort * cost.element.*count;
  }
  return cost;
}
void add_rows(const RowCost& row, const View& x, Cost& cost) {
  if (row_length(x) == 0) return;
  cost.add(row.row, row_count(x));
  cost.add(row.element, x.size());
}

// Operands of rows to be counted.
struct Operands {
  Counting row[5][16];
  Counting* operator[](int k) { return row[k]; }
};

// Softmax and its like: one to three operands, and x, that which has the rows, is the last, or the middle one of three.
template <class F, size_t... K> RowCost measure(std::index_sequence<K...>) {
  return measure_row([](int64_t n) {
    Operands of;
    F()(Counted{n}, of[K]..., of[sizeof...(K)]);
  });
}
template <class F, int kInputs> void softmax_cost(const Launch& launch, Cost& cost) {
  static const RowCost row = measure<F>(std::make_index_sequence<kInputs>());
  add_rows(row, launch.in(kInputs == 3 ? 1 : kInputs - 1), cost);
}

template <class F> void call_given(bool given, Counting* w, const F& f) {
  if (given) f(w);
  else f(none());
}

template <bool kCentred> void norm_cost(const Launch& launch, Cost& cost) {
  const RowCost row = measure_row([&launch](int64_t n) {
    Operands of;
    call_given(launch.ints[0], of[1], [&](auto w) {
      call_given(launch.ints[1], of[2], [&](auto b) { Norm<kCentred>()(Counted{n}, of[0], w, b, Counting(1), of[3]); });
    });
  });
  add_rows(row, launch.in(), cost);
}
template <bool kCentred> void norm_pullback_cost(const Launch& launch, Cost& cost) {
  const RowCost row = measure_row([&launch](int64_t n) {
    Operands of;
    Counting gw[16], gb[16];
    call_given(launch.ints[0], of[2], [&](auto w) {
      NormPullback<kCentred>()(Counted{n}, of[0], of[1], w, Counting(1), of[3], static_cast<Counting*>(gw),
                               static_cast<Counting*>(gb));
    });
  });
  add_rows(row, launch.in(), cost);
}

template <bool kLoss, bool kGradient> void cross_entropy_cost(const Launch& launch, Cost& cost) {
  const Counting smoothing(launch.reals[0]);
  const RowCost row = measure_row([smoothing](int64_t n) {
    Operands of;
    const Counted over{n};
    if constexpr (kLoss && kGradient) (void)cross_entropy_and_gradient(over, Counting(1), of[0], 0, smoothing, of[1]);
    else if constexpr (kLoss) (void)cross_entropy_of(over, of[0], log_sum_exp(over, of[0]), 0, smoothing);
    else cross_entropy_gradient(over, Counting(1), of[0], 0, smoothing, of[1]);
  });
  add_rows(row, launch.in(kGradient ? 1 : 0), cost);
}

}  // namespace

void divide_by_count_cost(const Launch& launch, Cost& cost) {
  cost.integer_ops = launch.in(1).size();  // an addition for each label
  cost.special = launch.out().size();
}

const Kernel softmax{"softmax", run_softmax, softmax_cost<Softmax, 1>};
const Kernel log_softmax{"log_softmax", run_log_softmax, softmax_cost<LogSoftmax, 1>};
const Kernel logsumexp{"logsumexp", run_logsumexp, softmax_cost<LogSumExp, 1>};
const Kernel softmax_pullback{"softmax_pullback", run_softmax_pullback, softmax_cost<SoftmaxPullback, 2>};
const Kernel log_softmax_pullback{"log_softmax_pullback", run_log_softmax_pullback, softmax_cost<LogSoftmaxPullback, 2>};
const Kernel logsumexp_pullback{"logsumexp_pullback", run_logsumexp_pullback, softmax_cost<LogSumExpPullback, 3>};

const Kernel layer_norm{"layer_norm", run_layer_norm, norm_cost<true>};
const Kernel layer_norm_pullback{"layer_norm_pullback", run_layer_norm_pullback, norm_pullback_cost<true>};
const Kernel rms_norm{"rms_norm", run_rms_norm, norm_cost<false>};
const Kernel rms_norm_pullback{"rms_norm_pullback", run_rms_norm_pullback, norm_pullback_cost<false>};

const Kernel cross_entropy{"cross_entropy", run_cross_entropy, cross_entropy_cost<true, false>};
const Kernel cross_entropy_pullback{"cross_entropy_pullback", run_cross_entropy_pullback, cross_entropy_cost<false, true>};
const Kernel cross_entropy_with_gradient{"cross_entropy_with_gradient", run_cross_entropy_with_gradient,
                                         cross_entropy_cost<true, true>};

}  // namespace pb::kernels
