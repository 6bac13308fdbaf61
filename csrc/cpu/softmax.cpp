// softmax, log_softmax, logsumexp, and their pullbacks.
#include <cmath>

#include "cpu/rows.h"

namespace pb::cpu {
namespace {

// A row of the output from the same row of each input.
template <class F, size_t... K> void walk(const Launch& launch, const View& x, std::index_sequence<K...>) {
  const int64_t n = row_length(x);
  visit_row(x, [&](auto tag) {
    using C = decltype(tag);
    for_rows(x, kExpWork, [&](int64_t begin, int64_t end) {
      Scratch scratch;
      const RowsOut<C> out(launch.out(), scratch, kFarHidden);
      const Rows<C> in[] = {Rows<C>(launch.in(int(K)), scratch)...};
      for (int64_t k = begin; k < end; ++k) {
        F()(Loop{n}, in[K].read(k)..., out.open(k));
        out.close(k);
      }
    });
  });
}

// x, the operand that has the rows, is the last input of softmax and its like, and the middle one of three.
template <class F, int kInputs> void run(const Launch& launch) {
  const View& x = launch.in(kInputs == 3 ? 1 : kInputs - 1);
  if (row_length(x) > 0) return walk<F>(launch, x, std::make_index_sequence<kInputs>());
  const View& out = launch.out();  // of empty rows: nothing, or -inf for each
  const double nothing = -INFINITY;
  for (int64_t k = 0; k < out.size(); ++k)
    store(Compute::f64, out.dtype, &nothing, 1, out.data + k * item_size(out.dtype), item_size(out.dtype));
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void run_softmax(const Launch& launch) { cpu::run<Softmax, 1>(launch); }
void run_log_softmax(const Launch& launch) { cpu::run<LogSoftmax, 1>(launch); }
void run_logsumexp(const Launch& launch) { cpu::run<LogSumExp, 1>(launch); }
void run_softmax_pullback(const Launch& launch) { cpu::run<SoftmaxPullback, 2>(launch); }
void run_log_softmax_pullback(const Launch& launch) { cpu::run<LogSoftmaxPullback, 2>(launch); }
void run_logsumexp_pullback(const Launch& launch) { cpu::run<LogSumExpPullback, 3>(launch); }

}  // namespace pb::kernels
