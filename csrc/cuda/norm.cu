// Layer norm, RMS norm, the variance and the deviation of rows. A row is read once if registers can hold it.
#include "cuda/row_launch.cuh"
#include "families/norm_rows.h"

namespace pb::cuda {
namespace {

// If there is no weight, 1 is read in its place; if there is no bias, -0.0 is read, which does not even change the sign of a zero.
template <bool kCentred> struct NormRow {
  static constexpr int kOperands = 2;
  Line weight, bias;
  double eps;

  template <class T>
  __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t) const {
    using C = acc_t<T>;
    C x[kShare];
    const auto row = over.load(line[1], x);
    kernels::Norm<kCentred>()(over, row, over.memory_row(weight, C(1)), over.memory_row(bias, C(-0.0)), C(eps), row);
    over.store(line[0], x);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t) const {
    using C = acc_t<T>;
    kernels::Norm<kCentred>()(over, over.memory_row(line[1]), over.memory_row(weight, C(1)), over.memory_row(bias, C(-0.0)),
                              C(eps), over.written(line[0]));
  }
};

// F: Variance or Deviation.
template <class F> struct SpreadRow {
  static constexpr int kOperands = 2;
  F measure;

  template <class T> __device__ void operator()(const RegisterRow<T>& over, const Line* line, int64_t) const {
    acc_t<T> x[kShare], y;
    measure(over, over.load(line[1], x), &y);
    over.store_one(line[0], y);
  }
  template <class T> __device__ void operator()(const Streamed<T>& over, const Line* line, int64_t) const {
    acc_t<T> y;
    measure(over, over.memory_row(line[1]), &y);
    over.store_one(line[0], y);
  }
};

template <bool kCentred> void norm(const Launch& launch) {
  const View& x = launch.in();
  if (kernels::row_length(x) == 0) return;
  NormRow<kCentred> row{{}, {}, launch.reals[0]};
  int next = 1;
  if (launch.ints[0]) row.weight = Line(launch.in(next++));
  if (launch.ints[1]) row.bias = Line(launch.in(next));
  run_rows(launch.operands, x, row);
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_layer_norm(const Launch& launch) { cuda::norm<true>(launch); }
void run_rms_norm(const Launch& launch) { cuda::norm<false>(launch); }
void run_variance(const Launch& launch) { cuda::run_rows(launch.operands, launch.in(), cuda::SpreadRow<Variance>()); }
void run_deviation(const Launch& launch) {
  cuda::run_rows(launch.operands, launch.in(), cuda::SpreadRow<Deviation>{{launch.reals[0]}});
}

}  // namespace pb::kernels
