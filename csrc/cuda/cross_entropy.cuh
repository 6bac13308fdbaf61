// The kernels of cross entropy, as formulas of a row of logits and its class number. If a row fits into registers, its logits are
// read once. Longer rows are read once in each pass: for the largest logit, for the sum of exponentials, and for the gradient.
#pragma once
#include "cuda/row_launch.cuh"

namespace pb::cuda {

using kernels::LogSum;

// The labels of the rows. A label out of range is reported, and its row is left out as if it were ignored.
struct Labels {
  DType dtype;
  int64_t ignored;
  double smoothing;
  FaultSink sink;

  Labels(int64_t ignored, double smoothing, DType dtype, FaultSink sink)
      : dtype(dtype), ignored(ignored), smoothing(smoothing), sink(sink) {}
  explicit Labels(const Launch& launch)
      : Labels(launch.ints[0], launch.reals[0], launch.in(launch.inputs - 1).dtype, fault_sink(launch)) {}

  struct Target {
    int64_t label;  // the label, or 0 if the label is out of range
    bool counts;    // true if the row contributes to the loss
  };
  __device__ bool counts(const char* label) const { return convert_from<int64_t>(dtype, label) != ignored; }
  template <class Over> __device__ Target read(const Over& over, const Line& line, int64_t row) const {
    const int64_t label = convert_from<int64_t>(dtype, line.data);
    const bool valid = label >= 0 && label < over.n;
    if (!valid && label != ignored && over.active && over.team.rank == 0) report(sink, row, label, over.n);
    return {valid ? label : 0, valid && label != ignored};
  }
};

// Each of the following formulas is called with the lines of its operands, by all threads of a block. Those with a gradient call
// cotangent() for g, once and after they have asked for the row, so that the row is under way meanwhile.

// Computes the loss of a row from x and its label.
struct LossRow {
  static constexpr int kOperands = 3;
  static constexpr bool kLoss = true, kGradient = false;
  Labels labels;

  template <class T>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t row) const {
    using C = acc_t<T>;
    const auto target = labels.read(over, line[2], row);
    C x[kShare], loss = C(0);
    const auto held = over.load(line[1], x);
    if (over.n > 0)
      loss = kernels::cross_entropy_of(over, held, kernels::log_sum_exp(over, held), target.label, C(labels.smoothing));
    over.store_one(line[0], target.counts ? loss : C(0));
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t row) const {
    using C = acc_t<T>;
    const auto target = labels.read(over, line[2], row);
    const auto x = over.memory_row(line[1]);
    const C loss = kernels::cross_entropy_of(over, x, kernels::log_sum_exp(over, x), target.label, C(labels.smoothing));
    over.store_one(line[0], target.counts ? loss : C(0));
  }
};

template <class T>
__device__ __forceinline__ void put_gradient(const RegisterRow<T>& over, acc_t<T> (&gx)[kShare], bool counts, const Line& out) {
#pragma unroll
  for (int s = 0; s < kShare; ++s) gx[s] = counts ? gx[s] : acc_t<T>(0);
  over.store(out, gx);
}
template <class T, class X, class E>
__device__ __forceinline__ void put_gradient(const Streamed<T>& over, acc_t<T> g, const X& x, const E& e,
                                             const Labels::Target& target, acc_t<T> smoothing, const Line& out) {
  using C = acc_t<T>;
  const C scale = g / e.sum;
  const C others = others_of(over, x, e);
  const bool smooth = smoothing != C(0), undefined = m::isinf(e.top) || e.sum != e.sum;
  const bool counts = target.counts && !(undefined && g == C(0));
  const C everywhere = smooth ? over.mean(C(g * smoothing)) : C(0), here = smooth ? C(g * (C(1) - smoothing)) : g;
  const C largest = scale - everywhere, rest = (smooth ? C(C(g - here) - everywhere) : C(0)) - others * scale;
  const bool sure = kernels::is_sure(e.sum);
  const int64_t label = target.label;
  const auto gx = over.written(out);
  over.each([=](auto i) {
    const C y = e.of(x[i]) * scale - everywhere;
    gx[i] = counts ? i.column == label ? sure && y == largest ? rest : C(y - here) : y : C(0);
  });
}

// Computes gx of a row from g, x and its label.
struct GradientRow {
  static constexpr int kOperands = 4, kCotangent = 1;
  static constexpr bool kLoss = false, kGradient = true;
  Labels labels;

  template <class T, class Cotangent>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t row, const Cotangent& cotangent) const {
    using C = acc_t<T>;
    const auto target = labels.read(over, line[3], row);
    C x[kShare];
    const auto held = over.load(line[2], x);
    kernels::cross_entropy_gradient(over, C(cotangent()), held, target.label, C(labels.smoothing), held);
    put_gradient(over, x, target.counts, line[0]);
  }
  template <class T, class Cotangent>
  __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t row, const Cotangent& cotangent) const {
    const auto target = labels.read(over, line[3], row);
    const auto x = over.memory_row(line[2]);
    const acc_t<T> g = cotangent();
    put_gradient(over, g, x, exponentials(over, x), target, acc_t<T>(labels.smoothing), line[0]);
  }
};

// Computes the loss and gx of a row from g, x and its label.
struct LossAndGradientRow {
  static constexpr int kOperands = 5, kCotangent = 2;
  static constexpr bool kLoss = true, kGradient = true;
  Labels labels;

  template <class T, class Cotangent>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t row, const Cotangent& cotangent) const {
    using C = acc_t<T>;
    const auto target = labels.read(over, line[4], row);
    C x[kShare], loss = C(0);
    const auto held = over.load(line[3], x);
    const C g = cotangent();
    if (over.n > 0) loss = kernels::cross_entropy_and_gradient(over, g, held, target.label, C(labels.smoothing), held);
    over.store_one(line[0], target.counts ? loss : C(0));
    put_gradient(over, x, target.counts, line[1]);
  }
  template <class T, class Cotangent>
  __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t row, const Cotangent& cotangent) const {
    using C = acc_t<T>;
    const auto target = labels.read(over, line[4], row);
    const C g = cotangent();
    const auto x = over.memory_row(line[3]);
    const auto e = exponentials(over, x);
    const C zero = kernels::is_lone(e.sum, e.top) ? C(0) : e.top - e.top;
    const LogSum<C> sum{e.top, kernels::log_of_sum(over, e.sum, others_of(over, x, e)), zero};
    const C smoothing = C(labels.smoothing);
    const C loss = kernels::cross_entropy_of(over, x, sum, target.label, smoothing);
    over.store_one(line[0], target.counts ? loss : C(0));
    put_gradient(over, g, x, e, target, smoothing, line[1]);
  }
};

// Applies f to all rows of a launch. Rows without classes are processed too, because their labels are out of range and must be
// reported. `views` are the launch's operands, with one number for each row.
template <class F> void run_labelled(const View* views, const F& f) {
  constexpr int kCount = F::kOperands;
  View operands[kCount];
  for (int k = 0; k < kCount; ++k) operands[k] = views[k];
  View& labels = operands[kCount - 1];  // reads the labels of shape (rows,) as (rows, 1)
  labels.shape[1] = 1, labels.stride[1] = item_size(labels.dtype), labels.ndim = 2;
  run_rows(operands, operands[kCount - 2], f);
}

}  // namespace pb::cuda
