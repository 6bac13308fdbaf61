// The kernels of recurrent layers, and their costs.
#include "families/recurrent.h"

namespace pb::kernels {
namespace {

template <class Cell> Counts forward_counts() {
  using A = CountingScalar;
  return counts_of([] {
    A x[Cell::kGates], p[Cell::kGates], y[Cell::kKept];
    Cell::template forward<A>(x, p, A(0.5), y);
  });
}
template <class Cell> Counts backward_counts() {
  using A = CountingScalar;
  return counts_of([] {
    A g[Cell::kKept], y[Cell::kKept], gx[Cell::kGates], gp[Cell::kGates];
    Cell::template pull<A>(g, A(0.5), A(0.5), y, A(0.5), gx, gp);
  });
}

void add_products(const Recurrence& r, int64_t steps, Cost& cost) {
  const int64_t products = steps * r.step_size() * r.gates * r.hidden;
  cost.fmas += products, cost.matmul_flops += 2 * products;
}

void forward_cost(const Launch& launch, Cost& cost) {
  const ForwardRecurrence r(launch);
  add_products(r, r.steps, cost);
  cost.add(visit_cell(r.kind, [](auto cell) { return forward_counts<decltype(cell)>(); }), r.elements());
  if (r.bias.data) cost.adds += r.elements() * r.gates;
}

// A GRU adds to the cotangent of the first state what the first step passes on directly. It reads h before each step, and so not the
// last one. An LSTM reads c, and the other cells h after each step.
void backward_cost(const Launch& launch, Cost& cost) {
  const BackwardRecurrence r(launch);
  if (r.step_size() == 0) return;
  for (int k = 0; k < launch.outputs; ++k) cost.bytes_written += launch.out(k).bytes();
  if (r.steps == 0) return;
  add_products(r, r.products(), cost);
  cost.add(visit_cell(r.kind, [](auto cell) { return backward_counts<decltype(cell)>(); }), r.elements());
  cost.bytes_read = r.g.distinct_bytes() + r.y.bytes() + (r.products() ? r.w.distinct_bytes() : 0);
  const int64_t size = item_size(r.y.dtype);
  if (r.kind == CellKind::gru) {
    if (r.gh.data) cost.adds += r.step_size();
    cost.bytes_read += r.h.distinct_bytes() - r.step_size() * size;
  } else if (r.kind == CellKind::lstm) {
    cost.bytes_read += r.c.distinct_bytes() - r.elements() * size;
  }
}

constexpr RecurrentOp op_of(const char* name, const char* pullback, CellKind kind) {
  return {{name, run_recurrence, forward_cost, executed_recurrence},
          {pullback, run_recurrence_pullback, backward_cost, executed_recurrence_pullback},
          kind};
}

}  // namespace

const RecurrentOp recurrent_ops[3] = {op_of("rnn", "rnn_pullback", CellKind::tanh),
                                      op_of("lstm", "lstm_pullback", CellKind::lstm),
                                      op_of("gru", "gru_pullback", CellKind::gru)};

}  // namespace pb::kernels
