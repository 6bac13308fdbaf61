// Recurrent layers. Rows of a batch do not meet, so threads share the rows of small layers and run all steps; the weight is laid out
// once. Large layers go step by step, and threads share each product.
#include "families/recurrent.h"

#include <algorithm>
#include <cstring>

#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/matmul.h"
#include "cpu/pool.h"
#include "cpu/small_product.h"
#include "families/matmul.h"

namespace pb::cpu {
namespace {

using kernels::BackwardRecurrence;
using kernels::ForwardRecurrence;
using kernels::Recurrence;

constexpr int64_t kGrain = 500000;                  // the fewest multiply-adds per thread
constexpr int64_t kGateWork = 32;                   // the time of a gate, in multiply-adds
constexpr int64_t kTileRows = 8;                    // rows that a tile of products has at best
constexpr int64_t kMostWeights = int64_t{1} << 18;  // that stay in the L2 cache of each thread
constexpr int64_t kLeastReuse = 32;                 // rows of all steps, from which on it pays to lay out the weight

int64_t length(const Recurrence& r) { return r.gates * r.hidden; }

// True if each thread runs all steps of its rows.
bool is_by_rows(const Recurrence& r) {
  return r.steps > 1 && r.steps * r.rows >= kLeastReuse && length(r) <= kTileDepth && length(r) * r.hidden <= kMostWeights;
}
int64_t row_grain(const Recurrence& r) {
  const int64_t work = r.steps * length(r) * (r.hidden + kGateWork);
  return is_by_rows(r) ? std::max(kTileRows, kGrain / work + 1) : r.rows;
}
template <class C> int64_t padded(int64_t columns) {
  constexpr int64_t kColumns = kTileColumns<C>;
  return (columns + kColumns - 1) / kColumns * kColumns;
}

// Reads and writes runs of elements of an operand in the type C, in place if that is the operand's.
template <class C> const C* read(const View& from, int64_t first, int64_t n, C* room) {
  if (from.dtype == storage_of(compute_of<C>)) return from.as<C>() + first;
  visit(from.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* x = from.as<T>() + first;
    if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>)
      for (int64_t i = 0; i < n; ++i) room[i] = C(x[i]);
  });
  return room;
}
template <class C> C* place(const View& to, int64_t first, C* room) {
  return to.dtype == storage_of(compute_of<C>) ? to.as<C>() + first : room;
}
template <class C> void write(const View& to, int64_t first, int64_t n, const C* from) {
  visit(to.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* y = to.as<T>() + first;
    if constexpr (std::is_same_v<T, C>) {
      if (y != from) std::copy_n(from, n, y);
    } else if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>) {
      for (int64_t i = 0; i < n; ++i) y[i] = T(from[i]);
    }
  });
}

// The product of each step: rows of k numbers with the weight, (n, k) transposed in the forward pass and (k, n) in the backward pass.
template <class C> class StepProduct {
 public:
  StepProduct(const Recurrence& r, bool forward, Scratch& scratch)
      : n_(forward ? length(r) : r.hidden),
        k_(forward ? r.hidden : length(r)),
        by_rows_(is_by_rows(r)),
        pitch_(by_rows_ ? padded<C>(n_) : n_) {
    const DType wide = storage_of(compute_of<C>);
    if (by_rows_) {
      View from = rounded(r.w, scratch);
      if (forward) std::swap(from.shape[0], from.shape[1]), std::swap(from.stride[0], from.stride[1]);
      C* const data = scratch.take<C>(k_ * pitch_);
      if (pitch_ != n_) std::memset(data, 0, size_t(k_ * pitch_) * sizeof(C));
      View to = contiguous_view(data, wide, from);
      to.stride[0] = pitch_ * int64_t(sizeof(C));
      if (from.dtype != wide) from = contiguous_as(wide, from, scratch);
      assign(to, from);
      right_.data = to.data;
    } else {
      right_ = {contiguous_as(wide, rounded(r.w, scratch), scratch).data, r.hidden, forward};
    }
  }

  int64_t pitch() const { return pitch_; }
  void operator()(int64_t rows, const C* a, C* out) const {
    Scratch scratch;
    View left = flat_view(a, storage_of(compute_of<C>), rows * k_);
    left = rounded(left, scratch);
    if (by_rows_) tile_product(rows, pitch_, k_, left.as<C>(), reinterpret_cast<const C*>(right_.data), out);
    else product(left.dtype, rows, n_, k_, {left.data, k_, false}, right_, reinterpret_cast<char*>(out));
  }

 private:
  int64_t n_, k_;
  bool by_rows_;
  int64_t pitch_;
  Matrix right_;
};

// Calls step(first, last) with the rows that are computed together.
template <class F> void each_rows(const Recurrence& r, int64_t first, int64_t last, const F& f) {
  if (is_by_rows(r)) f(first, last);
  else parallel_for(last - first, kGrain / (length(r) * kGateWork) + 1, [&](int64_t i, int64_t j) { f(first + i, first + j); });
}

// ---- forward

template <class C, class Cell, bool kBias> class Forward {
 public:
  Forward(const ForwardRecurrence& r, Scratch& scratch)
      : r_(r), x_(contiguous_as(r.x.dtype, r.x, scratch)), product_(r, true, scratch), bias_(nullptr) {
    if (kBias) bias_ = contiguous_as(storage_of(compute_of<C>), r.bias, scratch).template as<C>();
    const auto state = [&](const View& from) {
      C* const to = scratch.take<C>(r.step_size());
      assign(contiguous_view(to, storage_of(compute_of<C>), from), from);
      return to;
    };
    h_ = state(r.h), c_ = r.c.data ? state(r.c) : h_;
  }

  void run(int64_t first, int64_t last) {
    Scratch scratch;
    C* const p = scratch.take<C>((last - first) * product_.pitch());
    for (int64_t step = 0; step < r_.steps; ++step) {
      product_(last - first, h_ + first * r_.hidden, p);
      each_rows(r_, first, last, [&](int64_t i, int64_t j) {
        Scratch near;
        C* const room = near.take<C>((Cell::kGates + Cell::kKept) * r_.hidden);
        for (; i < j; ++i) row(r_.at(step), i, p + (i - first) * product_.pitch(), room);
      });
    }
  }

 private:
  void row(int64_t t, int64_t i, const C* p, C* room) {
    const int64_t n = r_.hidden, at = (t * r_.rows + i) * n, apart = r_.elements();
    const C* const x = read(x_, at * Cell::kGates, n * Cell::kGates, room + Cell::kKept * n);
    C* y[Cell::kKept];
    for (int k = 0; k < Cell::kKept; ++k) y[k] = place(r_.y, at + k * apart, room + k * n);
    cells(n, x, p, bias_, h_ + i * n, c_ + i * n, y);
    if (y[0] == room)
      for (int k = 0; k < Cell::kKept; ++k) write(r_.y, at + k * apart, n, y[k]);
  }
  static void cells(int64_t n, const C* x, const C* p, const C* bias, C* h, C* c, C* const (&y)[Cell::kKept]) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      C of_x[Cell::kGates], of_p[Cell::kGates], kept[Cell::kKept];
      for (int k = 0; k < Cell::kGates; ++k) {
        of_x[k] = x[k * n + j], of_p[k] = p[k * n + j];
        if constexpr (kBias) of_p[k] = of_p[k] + bias[k * n + j];
      }
      Cell::template forward<C>(of_x, of_p, c[j], kept);
      for (int k = 0; k < Cell::kKept; ++k) y[k][j] = kept[k];
      h[j] = kept[0];
      if constexpr (Cell::kKept == LstmCell::kKept) c[j] = kept[1];
    }
  }

  const ForwardRecurrence& r_;
  const View x_;
  const StepProduct<C> product_;
  const C* bias_;
  C *h_, *c_;  // the states of all rows; c is h unless the cell is an LSTM
};

// ---- backward

template <class C, class Cell> class Backward {
  static constexpr bool kLong = Cell::kKept == LstmCell::kKept;  // the cell reads c of the step before, and not h

 public:
  Backward(const BackwardRecurrence& r, Scratch& scratch)
      : r_(r), g_(contiguous_as(r.g.dtype, r.g, scratch)), before_(r.h), product_(r, false, scratch) {
    if (Cell::kCarries) before_ = contiguous_as(r.h.dtype, kLong ? r.c : r.h, scratch);
    carry_ = scratch.take<C>(r.step_size());
    std::fill_n(carry_, r.step_size(), C(0));
  }

  void run(int64_t first, int64_t last) {
    Scratch scratch;
    const int64_t n = r_.hidden, pitch = product_.pitch();
    C* const later = scratch.take<C>((last - first) * pitch);
    C* const z = scratch.take<C>((last - first) * n * Cell::kGates);
    std::fill_n(later, (last - first) * pitch, C(0));
    for (int64_t step = r_.steps; step-- > 0;) {
      each_rows(r_, first, last, [&](int64_t i, int64_t j) {
        Scratch near;
        C* const room = near.take<C>((2 * Cell::kKept + 1 + Cell::kGates) * n);
        for (; i < j; ++i) row(step, i, later + (i - first) * pitch, z + (i - first) * n * Cell::kGates, room);
      });
      if (step || r_.gh.data) product_(last - first, z, later);
    }
    for (int64_t i = first; i < last; ++i) finish(i, later + (i - first) * pitch);
  }

 private:
  void row(int64_t step, int64_t i, const C* later, C* z, C* room) {
    const int64_t n = r_.hidden, t = r_.at(step), before = r_.before(step), apart = r_.elements();
    const int64_t at = (t * r_.rows + i) * n;
    const C *g[Cell::kKept], *y[Cell::kKept], *state = carry_;
    for (int k = 0; k < Cell::kKept; ++k) {
      g[k] = read(g_, at + k * apart, n, room + 2 * k * n);
      y[k] = Cell::kCarries && k == 0 ? g[k] : read(r_.y, at + k * apart, n, room + (2 * k + 1) * n);
    }
    C* const rest = room + 2 * Cell::kKept * n;
    if (Cell::kCarries && before < 0) state = read(before_, i * n, n, rest);
    else if (Cell::kCarries) state = read(r_.y, (before * r_.rows + i) * n + kLong * apart, n, rest);
    C* const gx = place(r_.gx, at * Cell::kGates, rest + n);
    cells(n, g, y, later, carry_ + i * n, state, gx, z);
    if (gx == rest + n) write(r_.gx, at * Cell::kGates, n * Cell::kGates, gx);
    if (Cell::kSplits) write(r_.gp, at * Cell::kGates, n * Cell::kGates, z);
  }
  static void cells(int64_t n, const C* const (&g)[Cell::kKept], const C* const (&y)[Cell::kKept], const C* later, C* carry,
                    const C* state, C* gx, C* z) {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      C of_g[Cell::kKept], kept[Cell::kKept], of_x[Cell::kGates], of_p[Cell::kGates];
      for (int k = 0; k < Cell::kKept; ++k) of_g[k] = g[k][j], kept[k] = y[k][j];
      const C rest = Cell::template pull<C>(of_g, later[j], carry[j], kept, state[j], of_x, of_p);
      if constexpr (Cell::kCarries) carry[j] = rest;
      for (int k = 0; k < Cell::kGates; ++k) gx[k * n + j] = of_x[k], z[k * n + j] = of_p[k];
    }
  }
  // Writes the cotangents of the states before the first step.
  void finish(int64_t i, C* later) {
    const int64_t n = r_.hidden;
    C* const carry = carry_ + i * n;
    if (kLong) write(r_.gc, i * n, n, carry);
    if (!r_.gh.data) return;
    if (Cell::kCarries && !kLong)
      for (int64_t j = 0; j < n; ++j) later[j] = later[j] + carry[j];
    write(r_.gh, i * n, n, later);
  }

  const BackwardRecurrence& r_;
  const View g_;
  View before_;  // the state before the first step that the cell reads
  const StepProduct<C> product_;
  C* carry_;
};

// Writes the gradients of a sequence without steps.
void clear(const BackwardRecurrence& r) {
  if (r.gh.data) assign_number(r.gh, 0);
  if (r.gc.data) assign_number(r.gc, 0);
}

template <class F> void visit_wide(DType dtype, const F& f) {
  if (compute_type(dtype) == Compute::f32) f(float());
  else f(double());
}

template <class Pass> void run_rows(const Recurrence& r, Pass& pass) {
  parallel_for(r.rows, row_grain(r), [&](int64_t first, int64_t last) { pass.run(first, last); });
}

// Replaces the multiply-adds that the formula counts by those that the products do.
void replace_products(const Recurrence& r, int64_t steps, bool forward, Counts& work) {
  const int64_t n = forward ? length(r) : r.hidden, k = forward ? r.hidden : length(r);
  if (steps * r.step_size() == 0) return;
  work.fmas -= steps * r.step_size() * length(r);
  visit_wide(r.w.dtype, [&](auto zero) {
    using C = decltype(zero);
    if (is_by_rows(r)) return work.add(tile_product_work<C>(r.rows, padded<C>(n), k), steps);
    const Matrix left{nullptr, k, false}, right{nullptr, r.hidden, forward};
    work.add(product_work(storage_of(compute_of<C>), r.rows, n, k, left, right), steps);
  });
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void run_recurrence(const Launch& launch) {
  const ForwardRecurrence r(launch);
  if (r.elements() == 0) return;
  visit_cell(r.kind, [&](auto cell) {
    cpu::visit_wide(r.w.dtype, [&](auto zero) {
      const auto run = [&](auto bias) {
        cpu::Scratch scratch;
        cpu::Forward<decltype(zero), decltype(cell), decltype(bias)::value> forward(r, scratch);
        cpu::run_rows(r, forward);
      };
      if (r.bias.data) run(std::true_type());
      else run(std::false_type());
    });
  });
}

void run_recurrence_pullback(const Launch& launch) {
  const BackwardRecurrence r(launch);
  if (r.step_size() == 0) return;
  if (r.steps == 0) return cpu::clear(r);
  visit_cell(r.kind, [&](auto cell) {
    cpu::visit_wide(r.w.dtype, [&](auto zero) {
      cpu::Scratch scratch;
      cpu::Backward<decltype(zero), decltype(cell)> backward(r, scratch);
      cpu::run_rows(r, backward);
    });
  });
}

void executed_recurrence(const Launch& launch, Counts& work) {
  const ForwardRecurrence r(launch);
  cpu::replace_products(r, r.steps, true, work);
}
void executed_recurrence_pullback(const Launch& launch, Counts& work) {
  const BackwardRecurrence r(launch);
  cpu::replace_products(r, r.products(), false, work);
}

}  // namespace pb::kernels
