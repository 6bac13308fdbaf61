// The kernels of ops that own a row, and their costs, which are measured by running the formulas on the counting scalar.
#include "families/rows.h"

#include <algorithm>

#include "families/channel_norm.h"
#include "families/executed.h"
#include "families/norm_rows.h"
#include "families/reduce.h"
#include "launch/signature.h"

namespace pb::kernels {
namespace {

// A walk for the counting scalar, over `elements` elements.
struct CountingWalk {
  int64_t elements, combines, changes;

  template <class R, class F, class... Rows> CountingScalar fold(const F& f, const Rows&...) const {
    CountingScalar a = f(int64_t{0}), b = a;
    for (int64_t i = 1; i < elements; ++i) b = f(i);
    for (int64_t i = 0; i < combines; ++i) a = R::combine(a, b);
    return a;
  }
  template <class F> void each(const F& f) const {
    for (int64_t i = 0; i < elements; ++i) f(i);
  }
  CountingScalar mean(CountingScalar sum) const { return sum / CountingScalar(double(elements)); }
  bool any(bool b) const { return b; }
  CountingScalar at(const CountingScalar* x, int64_t k) const { return x[k]; }
  template <class F> void change(CountingScalar* y, int64_t k, const F& f) const {
    for (int64_t i = 0; i < changes; ++i) y[k] = f(y[k]);
  }
};

// The cost of a formula: per walk, per element, per combination in a reduction, and per single element that is changed.
struct RowCost {
  Counts walk, element, combine, change;

  // The cost is linear in the numbers of a walk, so four walks determine it.
  template <class F> explicit RowCost(F&& formula) {
    constexpr CountingWalk kLeast{5, 4, 1};
    const Counts least = counts_of([&] { formula(kLeast); });
    const auto more = [&](CountingWalk walk) { return counts_of([&] { formula(walk); }); };
    const Counts elements = more({9, 4, 1}), combines = more({5, 8, 1}), changes = more({5, 4, 2});
    for (const auto count : {&Counts::adds, &Counts::multiplies, &Counts::fmas, &Counts::special}) {
      element.*count = (elements.*count - least.*count) / 4;
      combine.*count = (combines.*count - least.*count) / 4;
      change.*count = changes.*count - least.*count;
      walk.*count = least.*count - 5 * element.*count - 4 * combine.*count - change.*count;
    }
  }
  Counts of(const Walks& walks) const {
    Counts all;
    all.add(walk, walks.walks), all.add(element, walks.elements), all.add(combine, walks.combines);
    all.add(change, walks.changes);
    return all;
  }
  // Returns the algorithmic cost, with one walk per row of x.
  Counts of(const View& x) const {
    const int64_t n = row_length(x), rows = row_count(x);
    return n ? of({rows, rows * n, rows * (n - 1), rows}) : Counts{};
  }
};

// The operands of a formula that is measured.
struct Operands {
  CountingScalar row[5][16];
  CountingScalar* operator[](int k) { return row[k]; }
};

// ---- Softmax and its relatives have one to three operands. x, which has the rows, is the last operand, or the middle one of
// three.

template <class F, size_t... K> RowCost measure(std::index_sequence<K...>) {
  return RowCost([](const CountingWalk& over) {
    Operands of;
    F()(over, of[K]..., of[sizeof...(K)]);
  });
}
template <class F, int kInputs> struct SoftmaxLike {
  static const RowCost& row() {
    static const RowCost cost = measure<F>(std::make_index_sequence<kInputs>());
    return cost;
  }
  static const View& x(const Launch& launch) { return launch.in(kInputs == 3 ? 1 : kInputs - 1); }
  static void cost(const Launch& launch, Cost& cost) { cost.add(row().of(x(launch))); }
  static void executed(const Launch& launch, Counts& work) {
    if (row_length(x(launch))) work = row().of(walks_of(launch, x(launch)));
  }
};

// ---- norms

template <class F> void call_given(bool given, CountingScalar* w, const F& f) {
  if (given) f(w);
  else f(none());
}

template <bool kCentred> struct Forward {
  static const RowCost& row(bool weight, bool bias) {
    static const auto measured = [](bool weight, bool bias) {
      return RowCost([=](const CountingWalk& over) {
        Operands of;
        call_given(weight, of[1], [&](auto w) {
          call_given(bias, of[2], [&](auto b) { Norm<kCentred>()(over, of[0], w, b, CountingScalar(1), of[3]); });
        });
      });
    };
    static const RowCost costs[] = {measured(false, false), measured(false, true), measured(true, false), measured(true, true)};
    return costs[2 * weight + bias];
  }
  static void cost(const Launch& launch, Cost& cost) { cost.add(row(launch.ints[0], launch.ints[1]).of(launch.in())); }
  static void executed(const Launch& launch, Counts& work) {
    if (row_length(launch.in()) == 0) return;
    const Walks walks = walks_of_norm(launch);
    work = row(walks.affine || launch.ints[0], walks.affine || launch.ints[1]).of(walks);
  }
};

template <bool kCentred> struct Backward {
  static const RowCost& row(bool weight) {
    static const auto measured = [](bool weight) {
      return RowCost([=](const CountingWalk& over) {
        Operands of;
        CountingScalar gw[16], gb[16];
        call_given(weight, of[2], [&](auto w) {
          NormPullback<kCentred>()(over, of[0], of[1], w, CountingScalar(1), of[3], static_cast<CountingScalar*>(gw),
                                   static_cast<CountingScalar*>(gb));
        });
      });
    };
    static const RowCost costs[] = {measured(false), measured(true)};
    return costs[weight];
  }
  static void cost(const Launch& launch, Cost& cost) { cost.add(row(launch.ints[0]).of(launch.in())); }
  static void executed(const Launch& launch, Counts& work) {
    if (row_length(launch.in()) == 0) return;
    const Walks walks = walks_of_norm_pullback(launch);
    work = row(walks.affine || launch.ints[0]).of(walks);
    executed_sums(launch, kCentred ? 2 : 1, work);
  }
};

// The numbers of a row differ, so that it is not measured again.
template <class F> struct SpreadOfRows {
  static const RowCost& row() {
    static const RowCost cost([](const CountingWalk& over) {
      Operands of;
      for (int i = 0; i < 16; ++i) of[0][i] = CountingScalar(i);
      F()(over, of[0], of[1]);
    });
    return cost;
  }
  static void cost(const Launch& launch, Cost& cost) { cost.add(row().of(launch.in())); }
  static void executed(const Launch& launch, Counts& work) { work = row().of(walks_of_norm(launch)); }
};

// ---- cross entropy

template <bool kLoss, bool kGradient> struct CrossEntropy {
  static const RowCost& row(bool smooth) {
    static const auto measured = [](double share) {
      return RowCost([smoothing = CountingScalar(share)](const CountingWalk& over) {
        Operands of;
        if constexpr (kLoss && kGradient) (void)cross_entropy_and_gradient(over, CountingScalar(1), of[0], 0, smoothing, of[1]);
        else if constexpr (kLoss) (void)cross_entropy_of(over, of[0], log_sum_exp(over, of[0]), 0, smoothing);
        else cross_entropy_gradient(over, CountingScalar(1), of[0], 0, smoothing, of[1]);
      });
    };
    static const RowCost costs[] = {measured(0), measured(0.5)};
    return costs[smooth];
  }
  static const View& x(const Launch& launch) { return launch.in(kGradient ? 1 : 0); }
  static void cost(const Launch& launch, Cost& cost) { cost.add(row(launch.reals[0] != 0).of(x(launch))); }
  static void executed(const Launch& launch, Counts& work) {
    if (row_length(x(launch))) work = row(launch.reals[0] != 0).of(walks_of(launch, x(launch)));
  }
};

// The losses of all rows as one number.
template <bool kLoss, bool kGradient> struct CrossEntropyTotal : CrossEntropy<kLoss, kGradient> {
  using Rows = CrossEntropy<kLoss, kGradient>;

  static void cost(const Launch& launch, Cost& cost) {
    const int64_t rows = row_count(Rows::x(launch));
    Rows::cost(launch, cost);
    if (kLoss) cost.adds += std::max<int64_t>(0, rows - 1);
    if (launch.ints[1]) cost.special += kLoss + kGradient, cost.integer_ops = rows;
  }
  static void executed(const Launch& launch, Counts& work) {
    const View& x = Rows::x(launch);
    work = {};
    if (row_length(x)) Rows::executed(launch, work);
    executed_total(launch, x, kLoss, kGradient, work);
  }
};

template <class Op> constexpr Kernel kernel_of(const char* name, void (*run)(const Launch&)) {
  return {name, run, Op::cost, Op::executed};
}

}  // namespace

Counts work_of_layer_norm(bool weight, bool bias, const Walks& walks) { return Forward<true>::row(weight, bias).of(walks); }
Counts work_of_layer_norm_pullback(bool weight, const Walks& walks) { return Backward<true>::row(weight).of(walks); }
Counts work_of_loss_and_gradient(bool smooth, const Walks& walks) { return CrossEntropy<true, true>::row(smooth).of(walks); }

void sum_all(const View& out, const View& x) { sum_over(out, x, (int64_t{1} << x.ndim) - 1); }

void divide_by_count_cost(const Launch& launch, Cost& cost) {
  cost.integer_ops = launch.in(1).size();  // one addition per label
  cost.special = launch.out().size();
}

const Kernel softmax = kernel_of<SoftmaxLike<Softmax, 1>>("softmax", run_softmax);
const Kernel log_softmax = kernel_of<SoftmaxLike<LogSoftmax, 1>>("log_softmax", run_log_softmax);
const Kernel logsumexp = kernel_of<SoftmaxLike<LogSumExp, 1>>("logsumexp", run_logsumexp);
const Kernel softmax_pullback = kernel_of<SoftmaxLike<SoftmaxPullback, 2>>("softmax_pullback", run_softmax_pullback);
const Kernel log_softmax_pullback =
    kernel_of<SoftmaxLike<LogSoftmaxPullback, 2>>("log_softmax_pullback", run_log_softmax_pullback);
const Kernel logsumexp_pullback = kernel_of<SoftmaxLike<LogSumExpPullback, 3>>("logsumexp_pullback", run_logsumexp_pullback);

const Kernel layer_norm = kernel_of<Forward<true>>("layer_norm", run_layer_norm);
const Kernel layer_norm_pullback = kernel_of<Backward<true>>("layer_norm_pullback", run_layer_norm_pullback);
const Kernel rms_norm = kernel_of<Forward<false>>("rms_norm", run_rms_norm);
const Kernel rms_norm_pullback = kernel_of<Backward<false>>("rms_norm_pullback", run_rms_norm_pullback);

const Kernel variance = kernel_of<SpreadOfRows<Variance>>("variance", run_variance);
const Kernel deviation = kernel_of<SpreadOfRows<Deviation>>("deviation", run_deviation);

const Kernel cross_entropy = kernel_of<CrossEntropy<true, false>>("cross_entropy", run_cross_entropy);
const Kernel cross_entropy_pullback =
    kernel_of<CrossEntropy<false, true>>("cross_entropy_pullback", run_cross_entropy_pullback);
const Kernel cross_entropy_with_gradient =
    kernel_of<CrossEntropy<true, true>>("cross_entropy_with_gradient", run_cross_entropy_with_gradient);
const Kernel cross_entropy_total = kernel_of<CrossEntropyTotal<true, false>>("cross_entropy_total", run_cross_entropy_total);
const Kernel cross_entropy_total_pullback =
    kernel_of<CrossEntropyTotal<false, true>>("cross_entropy_total_pullback", run_cross_entropy_total_pullback);
const Kernel cross_entropy_total_with_gradient =
    kernel_of<CrossEntropyTotal<true, true>>("cross_entropy_total_with_gradient", run_cross_entropy_total_with_gradient);

static const Kernel division{"divide_by_count", divide_by_count, divide_by_count_cost};

static const char* refuses_empty(const Launch& launch) {
  return row_length(launch.in()) ? nullptr : "an empty row has no variance";
}

constexpr int kExpWork = 4;  // of ops with exponentials

static const KernelRows table{
    {&softmax, "(x[..., n]) -> y[..., n]", kExpWork},
    {&log_softmax, "(x[..., n]) -> y[..., n]", kExpWork},
    {&logsumexp, "(x[..., n]) -> y[..., (1)]", kExpWork},
    {&softmax_pullback, "(g[..., n], y[..., n]) -> gx[..., n]", kExpWork},
    {&log_softmax_pullback, "(g[..., n], y[..., n]) -> gx[..., n]", kExpWork},
    {&logsumexp_pullback, "(g[..., (1)], x[..., n], y[..., (1)]) -> gx[..., n]", kExpWork},
    {&variance, "(x[..., n]) -> y[..., (1)]", kExpWork, refuses_empty},
    {&deviation, "(x[..., n], real factor) -> y[..., (1)]", kExpWork, refuses_empty},
    {&layer_norm, "(x[..., n], weight[n]?, bias[n]?, real eps) -> y[..., n]", 1},
    {&rms_norm, "(x[..., n], weight[n]?, real eps) -> y[..., n]", 1},
    {&layer_norm_pullback, "(g[..., n], x[..., n], weight[n]?, real eps) -> gx[..., n], gweight[n], gbias[n]", 2},
    {&rms_norm_pullback, "(g[..., n], x[..., n], weight[n]?, real eps) -> gx[..., n], gweight[n]", 2},
    {&division, "(x[...], int labels[..., n], int ignored) -> y[...]", 1},
    {&cross_entropy, "(logits[n, c], int labels[n], int ignored, real smoothing) -> loss[n, (1)]", kExpWork},
    {&cross_entropy_pullback, "(g[n, (1)], logits[n, c], int labels[n], int ignored, real smoothing) -> glogits[n, c]",
     kExpWork},
    {&cross_entropy_total, "(logits[n, c], int labels[n], int ignored, real smoothing, flag mean) -> loss[]", kExpWork},
    {&cross_entropy_total_pullback,
     "(g[], logits[n, c], int labels[n], int ignored, real smoothing, flag mean) -> glogits[n, c]", kExpWork},
};

}  // namespace pb::kernels
