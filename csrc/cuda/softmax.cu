// softmax, log_softmax, logsumexp, and their pullbacks. A row is read once and written once if registers can hold it: up to 4,096
// elements, or 2,048 of float64. Longer rows are read once in each pass.
#include "cuda/row_launch.cuh"

namespace pb::cuda {
namespace {

using kernels::LogSum;

// Computes y from x, in place.
struct SoftmaxRow {
  static constexpr int kOperands = 2;

  template <class T>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t) const {
    acc_t<T> x[kShare];
    const auto row = over.load(line[1], x);
    kernels::Softmax()(over, row, row);
    over.store(line[0], x);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t) const {
    using C = acc_t<T>;
    const auto x = over.memory_row(line[1]);
    const auto e = exponentials(over, x);
    const C scale = C(1) / e.sum;
    const auto y = over.written(line[0]);
    over.each([=](auto i) { y[i] = e.of(x[i]) * scale; });
  }
};

struct LogSoftmaxRow {
  static constexpr int kOperands = 2;

  template <class T>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t) const {
    acc_t<T> x[kShare];
    const auto row = over.load(line[1], x);
    kernels::LogSoftmax()(over, row, row);
    over.store(line[0], x);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t) const {
    using C = acc_t<T>;
    const auto x = over.memory_row(line[1]);
    const LogSum<C> sum = kernels::log_sum_exp(over, x);
    const auto y = over.written(line[0]);
    over.each([=](auto i) { y[i] = sum.below(C(x[i])) - sum.log; });
  }
};

struct LogSumExpRow {
  static constexpr int kOperands = 2;

  template <class T>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t) const {
    acc_t<T> x[kShare], y;
    kernels::LogSumExp()(over, over.load(line[1], x), &y);
    over.store_one(line[0], y);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t) const {
    const auto x = over.memory_row(line[1]);
    const LogSum<acc_t<T>> sum = kernels::log_sum_exp(over, x);
    over.store_one(line[0], sum.top + sum.log);
  }
};

// Computes gx from g and y.
template <class Formula> struct PullbackRow {
  static constexpr int kOperands = 3;

  template <class T>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t) const {
    acc_t<T> g[kShare], y[kShare];
    const auto row = over.load(line[1], g);
    Formula()(over, row, over.load(line[2], y), row);
    over.store(line[0], g);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t) const {
    Formula()(over, over.memory_row(line[1]), over.memory_row(line[2]), over.written(line[0]));
  }
};

// Computes gx from g, x and y, where g and y have one value per row.
struct LogSumExpPullbackRow {
  static constexpr int kOperands = 4;

  template <class T>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t) const {
    const acc_t<T> g = over.load_one(line[1]), y = over.load_one(line[3]);
    acc_t<T> x[kShare];
    const auto row = over.load(line[2], x);
    kernels::LogSumExpPullback()(over, &g, row, &y, row);
    over.store(line[0], x);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t) const {
    const acc_t<T> g = over.load_one(line[1]), y = over.load_one(line[3]);
    kernels::LogSumExpPullback()(over, &g, over.memory_row(line[2]), &y, over.written(line[0]));
  }
};

// Empty rows need no work, except that logsumexp returns the logarithm of an empty sum.
template <class Row> void run(const Launch& launch, const View& x, bool empty_rows = false) {
  if (kernels::row_length(x) > 0 || empty_rows) run_rows(launch.operands, x, Row());
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_softmax(const Launch& launch) { cuda::run<cuda::SoftmaxRow>(launch, launch.in()); }
void run_log_softmax(const Launch& launch) { cuda::run<cuda::LogSoftmaxRow>(launch, launch.in()); }
void run_logsumexp(const Launch& launch) { cuda::run<cuda::LogSumExpRow>(launch, launch.in(), true); }
void run_softmax_pullback(const Launch& launch) { cuda::run<cuda::PullbackRow<SoftmaxPullback>>(launch, launch.in(1)); }
void run_log_softmax_pullback(const Launch& launch) { cuda::run<cuda::PullbackRow<LogSoftmaxPullback>>(launch, launch.in(1)); }
void run_logsumexp_pullback(const Launch& launch) { cuda::run<cuda::LogSumExpPullbackRow>(launch, launch.in(1)); }

}  // namespace pb::kernels
