// Cross entropy of rows of logits with class numbers, its pullback, and both at once. The logits are read once where registers
// hold a row; longer rows are read once for the loss and twice for the gradient.
#include "cuda/row_launch.cuh"

namespace pb::cuda {
namespace {

using kernels::LogSum;

// What the kernels know of the labels. One out of range is reported, and its row left out as if it were to be ignored.
struct Labels {
  DType dtype;
  int64_t ignored;
  double smoothing;
  FaultSink sink;

  explicit Labels(const Launch& launch)
      : dtype(launch.in(launch.inputs - 1).dtype),
        ignored(launch.ints[0]),
        smoothing(launch.reals[0]),
        sink(fault_sink(launch)) {}

  struct Target {
    int64_t label;  // one that can be read
    bool counts;    // whether the row does
  };
  template <class Over> __device__ Target read(const Over& over, const Line& line, int64_t row) const {
    const int64_t label = convert_from<int64_t>(dtype, line.data);
    const bool valid = label >= 0 && label < over.n;
    if (!valid && label != ignored && over.active && over.team.rank == 0) report(sink, row, label, over.n);
    return {valid ? label : 0, valid && label != ignored};
  }
};

// in: x in registers, or to be read again.
template <class T, int kPer, bool kBlock, class X, class A>
__device__ __forceinline__ A loss_of(const Held<T, kPer, kBlock>& over, const X& x, const Labels::Target& target, A smoothing) {
  const A loss = kernels::cross_entropy_of(over, x, kernels::log_sum_exp(over, x), target.label, smoothing);
  return target.counts ? loss : A(0);
}
template <class T, class X, class A>
__device__ __forceinline__ A loss_of(const Streamed<T>& over, const X& x, const Labels::Target& target, A smoothing) {
  const A loss = kernels::cross_entropy_of(over, x, over.log_sum_exp(x), target.label, smoothing);
  return target.counts ? loss : A(0);
}

template <class T, int kPer, bool kBlock>
__device__ __forceinline__ void put_gradient(const Held<T, kPer, kBlock>& over, acc_t<T> g, acc_t<T> (&x)[kPer],
                                             const Labels::Target& target, acc_t<T> smoothing, const Line& out) {
  const typename Held<T, kPer, kBlock>::Kept row{x, {}};
  kernels::cross_entropy_gradient(over, g, row, target.label, smoothing, row);
  if (!target.counts) over.each([=](auto i) { row[i] = acc_t<T>(0); });
  over.store(out, x);
}
template <class T, class X>
__device__ __forceinline__ void put_gradient(const Streamed<T>& over, acc_t<T> g, const X& x, const Labels::Target& target,
                                             acc_t<T> smoothing, const Line& out) {
  using C = acc_t<T>;
  const auto e = over.exponentials(x);
  const C top = e.top, scale = m::isinf(top) ? m::kNaN<C> : g / e.sum;
  const bool smooth = smoothing != C(0), counts = target.counts;
  const C everywhere = smooth ? over.mean(C(g * smoothing)) : C(0), here = smooth ? C(g * (C(1) - smoothing)) : g;
  const int64_t label = target.label;
  const auto gx = over.written(out);
  over.each([=](auto i) {
    const C y = m::exp_nonpositive(C(x[i] - top)) * scale - everywhere;
    gx[i] = counts ? i.column == label ? C(y - here) : y : C(0);
  });
}

// loss from x and a label a row.
struct LossRow {
  static constexpr int kOperands = 3;
  Labels labels;

  template <class T, int kPer, bool kBlock>
  __device__ void operator()(const Held<T, kPer, kBlock>& over, const Line* line, int64_t row) const {
    acc_t<T> x[kPer];
    const auto target = labels.read(over, line[2], row);
    over.store_one(line[0], over.n ? loss_of(over, over.load(line[1], x), target, acc_t<T>(labels.smoothing)) : acc_t<T>(0));
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t row) const {
    const auto target = labels.read(over, line[2], row);
    over.store_one(line[0], loss_of(over, over.lent(line[1]), target, acc_t<T>(labels.smoothing)));
  }
};

// gx from a g, x and a label a row.
struct GradientRow {
  static constexpr int kOperands = 4;
  Labels labels;

  template <class T, int kPer, bool kBlock>
  __device__ void operator()(const Held<T, kPer, kBlock>& over, const Line* line, int64_t row) const {
    acc_t<T> x[kPer];
    const auto target = labels.read(over, line[3], row);
    over.load(line[2], x);
    put_gradient(over, over.load_one(line[1]), x, target, acc_t<T>(labels.smoothing), line[0]);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t row) const {
    const auto target = labels.read(over, line[3], row);
    put_gradient(over, over.load_one(line[1]), over.lent(line[2]), target, acc_t<T>(labels.smoothing), line[0]);
  }
};

// loss and gx for a g of one, from x and a label a row.
struct LossAndGradientRow {
  static constexpr int kOperands = 4;
  Labels labels;

  template <class T, int kPer, bool kBlock>
  __device__ void operator()(const Held<T, kPer, kBlock>& over, const Line* line, int64_t row) const {
    using C = acc_t<T>;
    C x[kPer];
    const auto target = labels.read(over, line[3], row);
    const auto held = over.load(line[2], x);
    over.store_one(line[0], over.n ? loss_of(over, held, target, C(labels.smoothing)) : C(0));
    put_gradient(over, C(1), x, target, C(labels.smoothing), line[1]);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t row) const {
    using C = acc_t<T>;
    const auto target = labels.read(over, line[3], row);
    const auto x = over.lent(line[2]);
    over.store_one(line[0], loss_of(over, x, target, C(labels.smoothing)));
    put_gradient(over, C(1), x, target, C(labels.smoothing), line[1]);
  }
};

// Rows without classes are walked too: their labels are wrong.
template <class Row> void run(const Launch& launch) {
  constexpr int kCount = Row::kOperands;
  View operands[kCount];
  for (int k = 0; k < kCount; ++k) operands[k] = launch.operands[k];
  View& labels = operands[kCount - 1];  // (rows,) as (rows, 1)
  labels.shape[1] = 1, labels.stride[1] = item_size(labels.dtype), labels.ndim = 2;
  run_rows(operands, operands[kCount - 2], Row{Labels(launch)});
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_cross_entropy(const Launch& launch) { cuda::run<cuda::LossRow>(launch); }
void run_cross_entropy_pullback(const Launch& launch) { cuda::run<cuda::GradientRow>(launch); }
void run_cross_entropy_with_gradient(const Launch& launch) { cuda::run<cuda::LossAndGradientRow>(launch); }

}  // namespace pb::kernels
