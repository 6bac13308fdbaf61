// The kernels of softmax, log_softmax and logsumexp, and of their pullbacks.
#include <cmath>

#include "cpu/lane_rows.h"
#include "families/executed.h"

namespace pb::cpu {
namespace {

// Computes each row of the output from the same row of each input.
template <class F, size_t... K> void walk(const Launch& launch, const View& x, std::index_sequence<K...>) {
  visit_row(x, [&](auto tag) {
    using C = decltype(tag);
    walk_rows<C>(x, kExpWork, [&](const auto& walk, int64_t begin, int64_t end) {
      using Walk = std::decay_t<decltype(walk)>;
      Scratch scratch;
      const typename Walk::Out out(launch.out(), scratch, kNontemporalAfterExp);
      const typename Walk::In in[] = {typename Walk::In(launch.in(int(K)), scratch)...};
      for (int64_t k = begin; k < end; k += Walk::kRows) {
        F()(walk, in[K].read(k)..., out.open(k));
        out.close(k);
      }
    });
  });
}

// Runs softmax or one of its relatives. x, the operand that has the rows, is the last input, or the middle one of three.
template <class F, int kInputs> void run(const Launch& launch) {
  const View& x = launch.in(kInputs == 3 ? 1 : kInputs - 1);
  if (row_length(x) > 0) return walk<F>(launch, x, std::make_index_sequence<kInputs>());
  const View& out = launch.out();  // for empty rows logsumexp is -inf, and the other outputs are empty
  const double nothing = -INFINITY;
  for (int64_t k = 0; k < out.size(); ++k)
    store(Compute::f64, out.dtype, &nothing, 1, out.data + k * item_size(out.dtype), item_size(out.dtype));
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

// If each lane processes one row, the number of rows is rounded up to whole vectors, and a change of one element per row computes
// all elements.
Walks walks_of(const Launch&, const View& x) {
  const int64_t n = row_length(x), rows = row_count(x);
  if (!cpu::uses_lanes(x)) return {rows, rows * n, rows * (n - 1), rows};
  const int64_t lanes = compute_type(x.dtype) == Compute::f32 ? cpu::kWidth<float> : cpu::kWidth<double>;
  const int64_t walked = (rows + lanes - 1) / lanes * lanes;
  return {walked, walked * n, walked * (n - 1), walked * n};
}

void run_softmax(const Launch& launch) { cpu::run<Softmax, 1>(launch); }
void run_log_softmax(const Launch& launch) { cpu::run<LogSoftmax, 1>(launch); }
void run_logsumexp(const Launch& launch) { cpu::run<LogSumExp, 1>(launch); }
void run_softmax_pullback(const Launch& launch) { cpu::run<SoftmaxPullback, 2>(launch); }
void run_log_softmax_pullback(const Launch& launch) { cpu::run<LogSoftmaxPullback, 2>(launch); }
void run_logsumexp_pullback(const Launch& launch) { cpu::run<LogSumExpPullback, 3>(launch); }

}  // namespace pb::kernels
