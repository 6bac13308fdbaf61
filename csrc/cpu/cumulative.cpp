// Distributes the rows and columns of running reductions over threads. The axis itself is never cut.
#include "cpu/cumulative.h"

#include <algorithm>

#include "cpu/copy.h"
#include "cpu/index.h"
#include "cpu/pool.h"
#include "families/cumulative.h"

namespace pb::cpu {
namespace {

constexpr int64_t kGrain = 16 * 1024;  // the fewest elements per thread

void walk_columns(CumulativeLoop loop, char* y, const char* x, int64_t size, const AxisSplit& a, bool reverse) {
  const int64_t strips = (a.inner + kStrip - 1) / kStrip, step = reverse ? -a.inner : a.inner;
  const int64_t grain = std::max<int64_t>(1, kGrain / (a.length * std::min(kStrip, a.inner)));
  parallel_for(a.outer * strips, grain, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t column = unit % strips * kStrip;
      const int64_t first = unit / strips * a.length + (reverse ? a.length - 1 : 0);
      const int64_t start = (first * a.inner + column) * size;
      loop(y + start, x + start, {std::min(kStrip, a.inner - column), 1, a.length, step});
    }
  });
}

void walk_rows(CumulativeLoop loop, char* y, const char* x, int64_t size, const AxisSplit& a, bool reverse) {
  const int64_t first = reverse ? a.length - 1 : 0;
  const int64_t bundles = (a.outer + kRowsTogether - 1) / kRowsTogether;
  const int64_t grain = std::max<int64_t>(1, kGrain / (a.length * kRowsTogether));
  parallel_for(bundles, grain, [&](int64_t begin, int64_t end) {
    const int64_t row = begin * kRowsTogether, start = (row * a.length + first) * size;
    loop(y + start, x + start, {std::min(a.outer, end * kRowsTogether) - row, a.length, a.length, reverse ? -1 : 1});
  });
}

void cumulative(const Launch& launch) {
  const auto& op = static_cast<const CumulativeKernel&>(*static_cast<const kernels::Cumulative*>(launch.table));
  const View &x = launch.in(), &out = launch.out();
  if (out.size() == 0) return;
  const int axis = int(launch.ints[0]);
  const Compute compute = compute_type(x.dtype);
  const DType working = out.dtype == DType::u64 || out.dtype == DType::i64 ? out.dtype : storage_of(compute);
  Scratch scratch;
  View y = out;
  if (out.dtype != working) y = contiguous_view(scratch.take_bytes(out.size() * item_size(working)), working, out);
  const char* source = x.data;
  if (x.dtype != working || !x.contiguous()) assign(y, x), source = y.data;  // the loop then works in place
  const AxisSplit a = split_at(out, axis);
  const int row = int(compute_type(working));
  if (a.inner == 1) walk_rows(op.rows[row], y.data, source, item_size(working), a, launch.ints[1]);
  else walk_columns(op.columns[row], y.data, source, item_size(working), a, launch.ints[1]);
  if (y.data != out.data) assign(out, y);
}

// Adds an entry to the table. The entry lives as long as the program.
struct AddRunning {
  std::vector<const kernels::Cumulative*>& table;

  template <class Op> void operator()(Op entry, const char* name) const {
    static CumulativeKernel op{kernels::cumulative_of(entry, name, cumulative), {}, {}};
    set<Op, float>(op), set<Op, double>(op), set<Op, int64_t>(op), set<Op, uint64_t>(op);
    set<Op, bool>(op);
    table.push_back(&op);
  }
  template <class Op, class C> static void set(CumulativeKernel& op) {
    constexpr Compute c = compute_of<C>;
    if constexpr (kernels::runs_on<Op>(c)) op.columns[int(c)] = run_columns<Op, C>, op.rows[int(c)] = run_rows<Op, C>;
  }
};

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

using cpu::kOrderRun;

namespace {

// Returns the combinations of the running totals of this many chains.
int64_t combinations_of_totals(int64_t chains) {
  if (chains == 0) return 0;
  const int64_t whole = chains / kOrderRun, begun = whole + (chains % kOrderRun > 0);
  return chains - begun + std::max<int64_t>(0, chains - kOrderRun) + combinations_of_totals(whole);
}

}  // namespace

void executed_cumulative(const Launch& launch, Counts& work) {
  const View& x = launch.in();
  if (x.size() == 0) return;
  const int64_t length = x.shape[launch.ints[0]], chains = (length + kOrderRun - 1) / kOrderRun;
  work = {};
  work.add(
      static_cast<const Cumulative*>(launch.table)->counts,
      x.size() / length * (length - chains + std::max<int64_t>(0, length - kOrderRun) + combinations_of_totals(chains - 1)));
}

const std::vector<const Cumulative*>& cumulatives() {
  static const std::vector<const Cumulative*> table = [] {
    std::vector<const Cumulative*> entries;
    each_cumulative(cpu::AddRunning{entries});
    return entries;
  }();
  return table;
}

}  // namespace pb::kernels
