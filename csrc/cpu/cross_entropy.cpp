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
    kernels::clear(over, left_out, gx);
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
    kernels::clear(over, left_out, gx);
    *losses.open(k) = loss;
    losses.close(k);
    gradients.close(k);
  }
};

const View& logits_of(const Launch& launch) { return launch.in(launch.inputs - 2); }
const View& labels_of(const Launch& launch) { return launch.in(launch.inputs - 1); }

// Calls Row<Walk, C>(launch, scratch)(walk, k, label, x) for all rows k.
template <template <class, class> class Row> void run_rows(const Launch& launch, const int64_t* label) {
  const View& x = logits_of(launch);
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

template <template <class, class> class Row> void run(const Launch& launch) {
  Scratch scratch;
  run_rows<Row>(launch, read_labels(launch, labels_of(launch), row_length(logits_of(launch)), scratch));
}

// Returns a view of `rows` elements, which are one and the same if `stride` is 0.
View column_view(void* data, DType dtype, int64_t rows, int64_t stride) {
  View v = flat_view(data, dtype, rows);
  v.ndim = 2, v.shape[1] = 1, v.stride[1] = v.stride[0], v.stride[0] = stride;
  return v;
}

// Reads and writes an operand that is a single float.
template <class C> C number_of(const View& v) {
  C x;
  load(v.dtype, compute_of<C>, v.data, 0, 1, &x);
  return x;
}
template <class C> void put_number(const View& v, C x) { store(compute_of<C>, v.dtype, &x, 1, v.data, item_size(v.dtype)); }

// Sums the losses, which are contiguous.
template <class C> C sum_of(const View& losses, Scratch& scratch) {
  constexpr int64_t kSummedHere = 4096;  // Other threads help to add up the losses of more rows.
  constexpr Compute kCompute = compute_of<C>;
  const int64_t n = losses.shape[0];
  C sum = C(0);
  if (n > kSummedHere) {
    kernels::sum_all(flat_view(&sum, storage_of(kCompute), 1), flat_view(losses.data, losses.dtype, n));
  } else if (n > 0) {
    const C* terms = losses.as<C>();
    if (losses.dtype != storage_of(kCompute)) {
      C* wide = scratch.take<C>(n);
      load(losses.dtype, kCompute, losses.data, item_size(losses.dtype), n, wide);
      terms = wide;
    }
    sum = reduce_row<sum_reduce, C>(n, [=](int64_t i) { return terms[i]; });
  }
  return sum;
}

// Like run(), with one loss and one cotangent for all rows together.
template <template <class, class> class Row, bool kLoss, bool kGradient> void run_total(const Launch& launch) {
  const View& x = logits_of(launch);
  const int64_t rows = row_count(x), size = item_size(x.dtype);
  Scratch scratch;
  const int64_t* label = read_labels(launch, labels_of(launch), row_length(x), scratch);
  const bool mean = launch.ints[1];
  const int64_t count = mean ? std::count_if(label, label + rows, [](int64_t k) { return k >= 0; }) : 1;
  View views[5];
  Launch of_rows = launch;
  of_rows.operands = views;
  std::copy_n(launch.operands, launch.outputs + launch.inputs, views);
  visit_row(x, [&](auto zero) {
    using C = decltype(zero);
    if constexpr (kGradient) {
      View& g = of_rows.in(0);
      const View shared = column_view(scratch.take<char>(size), x.dtype, rows, 0);
      put_number(shared, mean ? number_of<C>(g) / C(count) : number_of<C>(g));
      g = shared;
    }
    if constexpr (kLoss) views[0] = column_view(scratch.take<char>(rows * size), x.dtype, rows, size);
    run_rows<Row>(of_rows, label);
    if constexpr (kLoss) {
      const C sum = sum_of<C>(views[0], scratch);
      put_number(launch.out(), mean ? sum / C(count) : sum);
    }
  });
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void run_cross_entropy(const Launch& launch) { cpu::run<cpu::Losses>(launch); }
void run_cross_entropy_pullback(const Launch& launch) { cpu::run<cpu::Gradients>(launch); }
void run_cross_entropy_with_gradient(const Launch& launch) { cpu::run<cpu::LossesAndGradients>(launch); }

void run_cross_entropy_total(const Launch& launch) { cpu::run_total<cpu::Losses, true, false>(launch); }
void run_cross_entropy_total_pullback(const Launch& launch) { cpu::run_total<cpu::Gradients, false, true>(launch); }
void run_cross_entropy_total_with_gradient(const Launch& launch) {
  cpu::run_total<cpu::LossesAndGradients, true, true>(launch);
}

void executed_total(const Launch& launch, const View& x, bool loss, bool gradient, Counts& work) {
  if (loss) work.adds += std::max<int64_t>(0, row_count(x) - 1);
  if (launch.ints[1]) work.special += loss + gradient;
}

}  // namespace pb::kernels
