// Cross entropy of rows of logits with class numbers, its pullback, and both at once: with a loss and a cotangent for each row, or with
// one for all rows, whose loss is the sum of the rows' losses or their mean over the rows that count.
#include <algorithm>

#include "cuda/whole_batch.cuh"
#include "families/executed.h"

namespace pb::cuda {
namespace {

// Row, for all rows of a launch. Each has a cotangent and a loss, unless the batch has them.
template <class Row> struct AllRows {
  static constexpr int kOperands = Row::kOperands;
  Row row;
  WholeBatch batch;

  // over: a RegisterRow or a Streamed row.
  template <template <class> class Over, class T>
  __device__ void operator()(const Over<T>& over, const Line* line, int64_t r) const {
    int count = 1;
    if constexpr (Row::kGradient) {
      row(over, line, r, [&] {
        if (batch.mean) count = batch.count_rows(row.labels);
        return batch.share_of<T>(over.load_one(line[Row::kCotangent]), count);
      });
    } else {
      row(over, line, r);
    }
    if constexpr (Row::kLoss) {
      if (!batch.total || !batch.arrives_last()) return;
      if (!Row::kGradient && batch.mean) count = batch.count_rows(row.labels);
      batch.finish<T>(count);
    }
  }
};

// A column of `rows` contiguous elements.
View column_of(void* data, DType dtype, int64_t rows) {
  View v = flat_view(data, dtype, rows);
  v.ndim = 2, v.shape[1] = 1, v.stride[1] = v.stride[0];
  return v;
}

// out = x / (the number of labels that count), for single numbers.
void divide(const View& out, const View& x, View labels, int64_t ignored) {
  View views[] = {out, x, labels};
  kernels::divide_by_count({nullptr, 1, 2, views, {ignored}, {}, nullptr});
}

// views: the operands of a launch, with a loss and a cotangent for each row.
template <class Row> void run_each(const View* views, const Launch& launch, const WholeBatch& batch = {}) {
  run_labelled(views, AllRows<Row>{{Labels(launch)}, batch});
}

template <class Row> void run_total(const Launch& launch) {
  constexpr int kCount = Row::kOperands;
  View views[kCount];
  std::copy_n(launch.operands, kCount, views);
  const View &labels = views[kCount - 1], &x = views[kCount - 2];
  const int64_t rows = kernels::row_count(x), ignored = launch.ints[0];
  const bool mean = launch.ints[1], once = is_one_launch(rows);
  Scratch scratch;
  if constexpr (Row::kLoss) views[0] = column_of(scratch.take<char>(rows * item_size(x.dtype)), x.dtype, rows);
  if constexpr (Row::kGradient) {
    View& g = views[Row::kCotangent];
    if (mean && !once) {
      const View share = contiguous_view(scratch.take<char>(item_size(g.dtype)), g.dtype, g);
      divide(share, g, labels, ignored);
      g = share;
    }
    g = column_of(g.data, g.dtype, rows), g.stride[0] = 0;
  }
  if (once) {
    const WholeBatch batch{mean,          int(rows),         labels.data, labels.stride[0],
                           views[0].data, launch.out().data, tickets(),   x.dtype};
    return run_each<Row>(views, launch, batch);
  }
  run_each<Row>(views, launch);
  if constexpr (Row::kLoss) {
    const View losses = flat_view(views[0].data, x.dtype, rows);
    if (!mean) return kernels::sum_all(launch.out(), losses);
    const DType wide = compute_type(x.dtype) == Compute::f64 ? DType::f64 : DType::f32;
    const View sum = contiguous_view(scratch.take<double>(1), wide, launch.out());
    kernels::sum_all(sum, losses);
    divide(launch.out(), sum, labels, ignored);
  }
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

void run_cross_entropy(const Launch& launch) { run_each<LossRow>(launch.operands, launch); }
void run_cross_entropy_pullback(const Launch& launch) { run_each<GradientRow>(launch.operands, launch); }
void run_cross_entropy_with_gradient(const Launch& launch) { run_each<LossAndGradientRow>(launch.operands, launch); }
void run_cross_entropy_total(const Launch& launch) { run_total<LossRow>(launch); }
void run_cross_entropy_total_pullback(const Launch& launch) { run_total<GradientRow>(launch); }
void run_cross_entropy_total_with_gradient(const Launch& launch) { run_total<LossAndGradientRow>(launch); }

// In one launch, every thread divides the cotangent, and the lanes of a warp combine the losses.
void executed_total(const Launch& launch, const View& x, bool loss, bool gradient, Counts& work) {
  const int64_t rows = row_count(x), once = is_one_launch(rows);
  if (loss) work.adds += once ? additions_of_sum(rows) : std::max<int64_t>(0, rows - 1);
  if (launch.ints[1]) work.special += loss + gradient * (once ? walks_of(launch, x).walks : 1);
}

}  // namespace pb::kernels
