// Cross entropy of rows of logits with class numbers, and its pullback.
#include "cpu/index.h"
#include "cpu/rows.h"

namespace pb::cpu {
namespace {

// The labels, all of them looked at before any work: the first that is wrong is reported, whatever the threads do.
const int64_t* read_labels(const Launch& launch, const View& labels, int64_t classes, Scratch& scratch) {
  const View all = contiguous_as(DType::i64, labels, scratch);
  const int64_t* label = all.as<const int64_t>();
  for (int64_t k = 0; k < labels.shape[0]; ++k)
    if (label[k] != launch.ints[0] && (label[k] < 0 || label[k] >= classes)) throw kernels::OutOfRange{k, label[k], classes};
  return label;
}

// What is done to row k of the logits, x, as long as its label is not to be ignored.
template <class C> struct Losses {
  const Launch& launch;
  RowsOut<C> losses;
  Losses(const Launch& launch, Scratch& near) : launch(launch), losses(launch.out(), near, kFarHidden) {}
  void operator()(int64_t k, int64_t label, int64_t n, const Rows<C>& x) const {
    C loss = C(0);
    if (label != launch.ints[0]) {
      const Row<C> row = x.read(k);
      loss = kernels::cross_entropy_of(Loop{n}, row, kernels::log_sum_exp(Loop{n}, row), label, C(launch.reals[0]));
    }
    *losses.open(k) = loss;
    losses.close(k);
  }
};
template <class C> struct Gradients {
  const Launch& launch;
  Rows<C> g;
  RowsOut<C> gradients;
  Gradients(const Launch& launch, Scratch& near)
      : launch(launch), g(launch.in(0), near), gradients(launch.out(), near, kFarHidden) {}
  void operator()(int64_t k, int64_t label, int64_t n, const Rows<C>& x) const {
    C* gx = gradients.open(k);
    if (label == launch.ints[0]) std::fill_n(gx, n, C(0));
    else kernels::cross_entropy_gradient(Loop{n}, g.read(k)[0], x.read(k), label, C(launch.reals[0]), gx);
    gradients.close(k);
  }
};
template <class C> struct LossesAndGradients {
  const Launch& launch;
  RowsOut<C> losses, gradients;
  LossesAndGradients(const Launch& launch, Scratch& near)
      : launch(launch), losses(launch.out(0), near, kFarHidden), gradients(launch.out(1), near, kFarHidden) {}
  void operator()(int64_t k, int64_t label, int64_t n, const Rows<C>& x) const {
    C *gx = gradients.open(k), loss = C(0);
    if (label == launch.ints[0]) std::fill_n(gx, n, C(0));
    else loss = kernels::cross_entropy_and_gradient(Loop{n}, C(1), x.read(k), label, C(launch.reals[0]), gx);
    *losses.open(k) = loss;
    losses.close(k);
    gradients.close(k);
  }
};

// Row<C>(launch, scratch)(k, label, n, rows of x) for all rows k.
template <template <class> class Row> void run(const Launch& launch) {
  const View& x = launch.in(launch.inputs - 2);
  Scratch scratch;
  const int64_t* label = read_labels(launch, launch.in(launch.inputs - 1), row_length(x), scratch);
  visit_row(x, [&](auto tag) {
    using C = decltype(tag);
    for_rows(x, kExpWork, [&](int64_t begin, int64_t end) {
      Scratch near;
      const Rows<C> rows(x, near);
      const Row<C> row(launch, near);
      for (int64_t k = begin; k < end; ++k) row(k, label[k], row_length(x), rows);
    });
  });
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void run_cross_entropy(const Launch& launch) { cpu::run<cpu::Losses>(launch); }
void run_cross_entropy_pullback(const Launch& launch) { cpu::run<cpu::Gradients>(launch); }
void run_cross_entropy_with_gradient(const Launch& launch) { cpu::run<cpu::LossesAndGradients>(launch); }

}  // namespace pb::kernels
