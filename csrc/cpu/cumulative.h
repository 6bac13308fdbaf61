// The loops of running sums, products and extremes along an axis, in the order of families/order.h.
#pragma once
#include <algorithm>

#include "families/cumulative.h"
#include "families/order.h"

namespace pb::cpu {

using kernels::kOrderRun;

// Lines are processed side by side, `pitch` elements apart: a step in one line waits for the previous result of that line, and these
// waits overlap. The elements of a line are `step` elements apart.
struct Lines {
  int64_t count, pitch, length, step;
};
// A loop over lines: rows, whose elements are neighbours, or neighbouring columns.
using CumulativeLoop = void (*)(void* y, const void* x, const Lines& lines);

constexpr int kRowsTogether = 8;
constexpr int64_t kStrip = 512;  // the most columns together, so that their results so far stay in the L1 cache

// An op with its loops for each compute type, or null if the op is not defined for it.
struct CumulativeKernel : kernels::Cumulative {
  CumulativeLoop rows[kComputes], columns[kComputes];
};

// The running totals of the chains of up to kMost lines.
template <class Op, class C, int kMost> class Totals {
 public:
  // Adds the totals of a chain, and computes their combination with those of all chains before it.
  template <class N> void add(N lines, const C* total, C* running) {
    if (completes(levels_[0], lines, total, running)) carry(lines);
  }

 private:
  struct Level {
    int64_t count = 0;
    C run[kMost], before[kMost];  // the result so far in the current chain, and the running total of the chains before it
  };

  // Adds totals to a level. Returns true if they complete a chain of totals.
  template <class N> static bool completes(Level& level, N lines, const C* total, C* running) {
    const Op op;
    if (level.count % kOrderRun == 0) std::copy_n(total, int64_t(lines), level.run);
    else
      for (int64_t i = 0; i < lines; ++i) level.run[i] = op(level.run[i], total[i]);
    if (++level.count <= kOrderRun) std::copy_n(level.run, int64_t(lines), running);
    else
      for (int64_t i = 0; i < lines; ++i) running[i] = op(level.before[i], level.run[i]);
    return level.count % kOrderRun == 0;
  }
  // Adds a completed chain of totals to the next level.
  [[gnu::noinline]] void carry(int64_t lines) {
    for (Level* level = levels_; completes(level[1], lines, level->run, level->before); ++level) {}
  }

  Level levels_[9];  // 2^50 elements
};

// Runs one chain of each line, and leaves its total in `now`. kContinues: `before` is the running total of the chains before it.
template <class Op, bool kContinues, class C, class N, class P>
PB_HD void run_chain(C* now, const C* before, C* y, const C* x, int64_t length, int64_t step, N lines, P pitch) {
  const Op op;
  for (int64_t l = 0; l < length; ++l, y += step, x += step) {
    const bool begins = l == 0;
#pragma GCC ivdep
    for (int64_t i = 0; i < lines; ++i) {
      const C result = begins ? x[i * pitch] : op(now[i], x[i * pitch]);
      now[i] = result;
      if constexpr (kContinues) y[i * pitch] = op(before[i], result);
      else y[i * pitch] = result;
    }
  }
}

template <class Op, class C, int kMost, class N, class P>
void run_lines(C* y, const C* x, int64_t length, int64_t step, N lines, P pitch) {
  C now[kMost], before[kMost], total[kMost], running[kMost];
  Totals<Op, C, kMost> totals;
  run_chain<Op, false>(now, before, y, x, std::min(kOrderRun, length), step, lines, pitch);
  for (int64_t l = kOrderRun; l < length; l += kOrderRun) {
    // The copies leave `now` and `before` of a few lines in registers, because no other function gets their addresses.
    for (int64_t i = 0; i < lines; ++i) total[i] = now[i];
    totals.add(lines, total, running);
    for (int64_t i = 0; i < lines; ++i) before[i] = running[i];
    run_chain<Op, true>(now, before, y + l * step, x + l * step, std::min(kOrderRun, length - l), step, lines, pitch);
  }
}

template <class Op, class C> void run_rows(void* out, const void* in, const Lines& lines) {
  C* y = static_cast<C*>(out);
  const C* x = static_cast<const C*>(in);
  int64_t r = 0;
  for (; r + kRowsTogether <= lines.count; r += kRowsTogether)
    run_lines<Op, C, kRowsTogether>(y + r * lines.pitch, x + r * lines.pitch, lines.length, lines.step,
                                    std::integral_constant<int64_t, kRowsTogether>(), lines.pitch);
  for (; r < lines.count; ++r)
    run_lines<Op, C, 1>(y + r * lines.pitch, x + r * lines.pitch, lines.length, lines.step,
                        std::integral_constant<int64_t, 1>(), lines.pitch);
}

template <class Op, class C> void run_columns(void* y, const void* x, const Lines& lines) {
  run_lines<Op, C, kStrip>(static_cast<C*>(y), static_cast<const C*>(x), lines.length, lines.step, lines.count,
                           std::integral_constant<int64_t, 1>());
}

}  // namespace pb::cpu
