// Cross entropy of rows of logits with class numbers, its pullback, and both at once, with a loss and a cotangent for each row.
#include "cuda/cross_entropy.cuh"

namespace pb::cuda {
namespace {

// Row, with a cotangent of its own for each row.
template <class Row> struct EachRow {
  static constexpr int kOperands = Row::kOperands;
  Row row;

  template <class Over> __device__ void operator()(const Over& over, const Line* line, int64_t r) const {
    row(over, line, r, [&] { return over.load_one(line[Row::kCotangent]); });
  }
};

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

void run_cross_entropy(const Launch& launch) { run_labelled(launch.operands, LossRow{Labels(launch)}); }
void run_cross_entropy_pullback(const Launch& launch) { run_labelled(launch.operands, EachRow<GradientRow>{{Labels(launch)}}); }
void run_cross_entropy_with_gradient(const Launch& launch) {
  run_labelled(launch.operands, EachRow<LossAndGradientRow>{{Labels(launch)}});
}

}  // namespace pb::kernels
