// Recurrent layers: all steps of one layer in one direction are one launch.
#pragma once
#include <algorithm>

#include "launch/door.h"
#include "math/cell.h"
#include "math/counting.h"

namespace pb::kernels {

enum class CellKind : uint8_t { tanh, relu, lstm, gru };
constexpr int kCells = 4;

// Calls f(Cell{}) with the formulas of math/cell.h.
template <class F> inline auto visit_cell(CellKind kind, F&& f) {
  switch (kind) {
    case CellKind::tanh: return f(PlainCell<false>{});
    case CellKind::relu: return f(PlainCell<true>{});
    case CellKind::lstm: return f(LstmCell{});
    case CellKind::gru: break;
  }
  return f(GruCell{});
}

// Shapes: T steps, B rows, H hidden numbers, G gates. x holds the input products of all steps. Each step adds to its share of x the
// product of the hidden state before it and the weight, and the bias if there is one.
//
// Forward. out: y (kept, T, B, H), contiguous. in: x (T, B, G H), h (B, H), w (G H, H), c (B, H) and the bias (G H). h and c are the
// states before the first step; c is null unless the cell is an LSTM, the bias if there is none.
// Backward. out: gx (T, B, G H), gh (B, H), gc (B, H), gp (T, B, G H), contiguous. in: g and y (kept, T, B, H), h, w, c. gp is the
// cotangent of the hidden products, from which the caller computes the gradients of w and the bias; it is null if it equals gx,
// which a GRU's does not. gh is null if nobody asked for it, which saves the product of the first step. gc is null unless the cell
// is an LSTM.
// ints: the CellKind, and 1 if the steps run from the last to the first.
struct Recurrence {
  const View &x, &h, &w, &c;
  CellKind kind;
  bool reverse;
  int64_t steps, rows, hidden, gates;

  Recurrence(const Launch& launch, const View& x_)
      : x(x_),
        h(launch.in(launch.outputs == 1 ? 1 : 2)),
        w(launch.in(launch.outputs == 1 ? 2 : 3)),
        c(launch.in(launch.outputs == 1 ? 3 : 4)),
        kind(CellKind(launch.ints[0])),
        reverse(launch.ints[1]),
        steps(x_.shape[0]),
        rows(x_.shape[1]),
        hidden(w.shape[1]),
        gates(w.shape[0] / w.shape[1]) {}

  // Returns the position of a step, and that of the step before it; the latter is -1 if it is the first one.
  int64_t at(int64_t step) const { return reverse ? steps - 1 - step : step; }
  int64_t before(int64_t step) const { return step == 0 ? -1 : at(step - 1); }
  int64_t step_size() const { return rows * hidden; }  // elements of one kept number at one step
  int64_t elements() const { return steps * rows * hidden; }
};
struct ForwardRecurrence : Recurrence {
  const View &bias, &y;
  explicit ForwardRecurrence(const Launch& launch) : Recurrence(launch, launch.in(0)), bias(launch.in(4)), y(launch.out()) {}
};
struct BackwardRecurrence : Recurrence {
  const View &g, &y, &gx, &gh, &gc, &gp;
  explicit BackwardRecurrence(const Launch& launch)
      : Recurrence(launch, launch.out(0)),
        g(launch.in(0)),
        y(launch.in(1)),
        gx(launch.out(0)),
        gh(launch.out(1)),
        gc(launch.out(2)),
        gp(launch.out(3)) {}

  // Returns the number of steps whose cotangent is multiplied by the weight; that of the first step gives gh alone.
  int64_t products() const { return gh.data ? steps : std::max<int64_t>(0, steps - 1); }
};

// The kernels of a cell: their names are those of the op.
struct RecurrentOp {
  Kernel forward, backward;
  CellKind kind;
};
// rnn (the activation is an argument), lstm, gru.
extern const RecurrentOp recurrent_ops[3];

// Each backend defines the following functions.
void run_recurrence(const Launch& launch);
void run_recurrence_pullback(const Launch& launch);
void executed_recurrence(const Launch& launch, Counts& work);
void executed_recurrence_pullback(const Launch& launch, Counts& work);

}  // namespace pb::kernels
