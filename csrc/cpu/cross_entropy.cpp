// The cross entropy of rows of logits with labels, which are class numbers, and its pullback.
#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/lane_rows.h"

namespace pb::cpu {
namespace {

constexpr int64_t kMostAtOnce = 64;  // labels of padding after the last, so that each lane of the last rows has one

[[noreturn]] void refuse_first(const int64_t* label, int64_t rows, int64_t ignored, int64_t classes) {
  int64_t k = 0;
  while (k + 1 < rows && (label[k] == ignored || (label[k] >= 0 && label[k] < classes))) ++k;
  throw OutOfRange{k, label[k], classes};
}

// Returns a copy of the labels, with -1 for those that are ignored. All labels are checked before any work begins, so that the
// first wrong one is reported for any number of threads. They are copied first, because other threads may write to the labels.
const int64_t* read_labels(const Launch& launch, const View& labels, int64_t classes, Scratch& scratch) {
  const int64_t rows = labels.shape[0], ignored = launch.ints[0];
  int64_t* label = scratch.take<int64_t>(rows + kMostAtOnce);
  assign(contiguous_view(label, DType::i64, labels), labels);
  bool wrong = false;
  for (int64_t k = 0; k < rows; ++k) wrong |= (label[k] != ignored) & (uint64_t(label[k]) >= uint64_t(classes));
  if (wrong) refuse_first(label, rows, ignored, classes);
  for (int64_t k = 0; k < rows; ++k) label[k] = label[k] != ignored ? label[k] : -1;
  std::fill_n(label + rows, kMostAtOnce, -1);
  return label;
}

// Computes the loss of row k of the logits, x, or of as many rows as the walk processes at once.
template <class Walk, class C> struct Losses {
  using A = typename Walk::Number;
  C smoothing;
  typename Walk::Out losses;
  Losses(const Launch& launch, Scratch& near)
      : smoothing(C(launch.reals[0])), losses(launch.out(), near, kNontemporalAfterExp) {}
  template <class X> void operator()(const Walk& over, int64_t k, typename Walk::Label label, const X& x) const {
    const auto left_out = over.is_negative(label);
    A loss = A(C(0));
    if (!over.all(left_out)) {
      loss = kernels::cross_entropy_of(over, x, kernels::log_sum_exp(over, x), label, smoothing);
      loss = m::select(left_out, A(C(0)), loss);
    }
    *losses.open(k) = loss;
    losses.close(k);
  }
};

template <class Walk, class A, class Mask> void clear(const Walk& over, Mask left_out, A* gx) {
  if (over.any(left_out)) over.each([=](int64_t i) { gx[i] = m::select(left_out, A(0), gx[i]); });
}
template <class Walk, class C> struct Gradients {
  using A = typename Walk::Number;
  C smoothing;
  typename Walk::In g;
  typename Walk::Out gradients;
  Gradients(const Launch& launch, Scratch& near)
      : smoothing(C(launch.reals[0])), g(launch.in(0), near), gradients(launch.out(), near, kNontemporalAfterExp) {}
  template <class X> void operator()(const Walk& over, int64_t k, typename Walk::Label label, const X& x) const {
    const auto left_out = over.is_negative(label);
    A* gx = gradients.open(k);
    if (!over.all(left_out)) kernels::cross_entropy_gradient(over, g.read(k)[0], x, label, smoothing, gx);
    clear(over, left_out, gx);
    gradients.close(k);
  }
};
template <class Walk, class C> struct LossesAndGradients {
  using A = typename Walk::Number;
  C smoothing;
  typename Walk::In g;
  typename Walk::Out losses, gradients;
  LossesAndGradients(const Launch& launch, Scratch& near)
      : smoothing(C(launch.reals[0])),
        g(launch.in(0), near),
        losses(launch.out(0), near, kNontemporalAfterExp),
        gradients(launch.out(1), near, kNontemporalAfterExp) {}
  template <class X> void operator()(const Walk& over, int64_t k, typename Walk::Label label, const X& x) const {
    const auto left_out = over.is_negative(label);
    A *gx = gradients.open(k), loss = A(C(0));
    if (!over.all(left_out)) {
      loss = kernels::cross_entropy_and_gradient(over, g.read(k)[0], x, label, smoothing, gx);
      loss = m::select(left_out, A(C(0)), loss);
    }
    clear(over, left_out, gx);
    *losses.open(k) = loss;
    losses.close(k);
    gradients.close(k);
  }
};

// Calls Row<Walk, C>(launch, scratch)(walk, k, label, x) for all rows k.
template <template <class, class> class Row> void run(const Launch& launch) {
  const View& x = launch.in(launch.inputs - 2);
  Scratch scratch;
  const int64_t* label = read_labels(launch, launch.in(launch.inputs - 1), row_length(x), scratch);
  visit_row(x, [&](auto tag) {
    using C = decltype(tag);
    walk_rows<C>(x, kExpWork, [&](const auto& walk, int64_t begin, int64_t end) {
      using Walk = std::decay_t<decltype(walk)>;
      static_assert(Walk::kRows <= kMostAtOnce);
      Scratch near;
      const typename Walk::In rows(x, near);
      const Row<Walk, C> row(launch, near);
      for (int64_t k = begin; k < end; k += Walk::kRows) row(walk, k, walk.label(label + k), rows.read(k));
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
