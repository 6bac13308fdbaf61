// Scatters. Threads share the columns of the target and, if it has too few, also its rows.
#include "cpu/scatter.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "cpu/copy.h"
#include "cpu/pool.h"

namespace pb::cpu {
namespace {

constexpr int64_t kShareFrom = 16 * 1024;  // the fewest updates that are shared by threads: about 10 us

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The work is cut into outer slices x blocks of columns x ranges of target rows.
struct Cut {
  int64_t blocks, width, ranges, height;
};
Cut cut_for(const AxisSplit& a, int64_t n) {
  const int64_t threads = n * a.inner * a.outer < kShareFrom ? 1 : thread_count();
  const int64_t strips = ceil_div(a.inner, kLanes);
  Cut cut;
  cut.width = ceil_div(strips, std::min(strips, ceil_div(threads, a.outer))) * kLanes;
  cut.blocks = ceil_div(a.inner, cut.width);
  // Each range reads all indices, which takes about as long as combining one column. So there are only as many ranges as threads
  // without separate columns, and one range if the rows are narrow.
  const int64_t wanted = a.inner < kLanes / 4 ? 1 : threads / (a.outer * cut.blocks);
  cut.height = ceil_div(a.length, std::clamp<int64_t>(wanted, 1, a.length));
  cut.ranges = ceil_div(a.length, cut.height);
  return cut;
}

// Combines those of n updates into the target that fall into rows [first, last). Their indices are read from `begin` on, a block at
// a time. If the target has other rows, the updates are selected without a branch.
void scatter_range(ScatterLoop loop, void* target, const char* updates, int64_t row_bytes, const Positions& positions,
                   int64_t begin, int64_t n, ScatterTask task, int64_t first, int64_t last) {
  int64_t near[Positions::kBlock], which[Positions::kBlock + 1];
  for (int64_t done = 0; done < n; done += Positions::kBlock) {
    const int64_t count = std::min(Positions::kBlock, n - done);
    task.index = positions.block(begin + done, count, near);
    if (!task.index) return;
    task.n = count;
    if (last - first < positions.length) {
      task.which = which;
      task.n = 0;
      for (int64_t j = 0; j < count; ++j) {
        which[task.n] = j;
        task.n += near[j] >= first && near[j] < last;
      }
    }
    loop(target, updates + done * row_bytes, task);
  }
}

int log_size(int size) { return size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3; }

// An op with its loops: one per compute type, or one per item size, by its logarithm, if the op only moves bytes.
struct ScatterKernel : kernels::Scatter {
  ScatterLoop loops[kComputes];
  bool moves, long_sums;
};

const ScatterKernel& op_of(const Launch& launch) {
  return static_cast<const ScatterKernel&>(*static_cast<const kernels::Scatter*>(launch.table));
}

// Return the dtype in which updates are combined, and the loop for it.
DType working_type(const ScatterKernel& op, DType dtype) { return op.moves ? dtype : storage_of(compute_type(dtype)); }
ScatterLoop loop_of(const ScatterKernel& op, DType dtype) {
  return op.moves ? op.loops[log_size(item_size(dtype))] : op.loops[int(compute_type(dtype))];
}

// Combines all updates. index_step: the distance from the indices of one outer slice to those of the next, 0 if all slices share
// them.
void scatter(const ScatterKernel& op, DType dtype, char* target, const char* updates, const Positions& positions,
             int64_t index_step, int64_t n, const AxisSplit& a) {
  if (a.outer * a.length * a.inner == 0) {  // nothing to write to, but the indices may be wrong
    int64_t near[Positions::kBlock];
    for (int64_t begin = 0; begin < n; begin += Positions::kBlock)
      if (!positions.block(begin, std::min(Positions::kBlock, n - begin), near)) return;
    return;
  }
  if (n == 0) return;
  const Cut cut = cut_for(a, n);
  const int size = item_size(working_type(op, dtype));
  const bool has_sums = op.long_sums && working_type(op, dtype) == DType::f32 && n > kSumBlock;
  const int64_t grain = std::max<int64_t>(1, kShareFrom / 2 / (n * cut.width));
  parallel_for(a.outer * cut.blocks * cut.ranges, grain, [&](int64_t begin, int64_t end) {
    std::optional<LongSums> sums;
    if (has_sums) sums.emplace(cut.height, n, cut.width);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t range = unit % cut.ranges, block = unit / cut.ranges % cut.blocks;
      const int64_t o = unit / cut.ranges / cut.blocks, column = block * cut.width;
      char* y = target + o * a.length * a.inner * size;
      const char* u = updates + o * n * a.inner * size;
      const int64_t width = std::min(cut.width, a.inner - column);
      const int64_t first = range * cut.height, last = std::min(a.length, first + cut.height);
      const ScatterTask task{nullptr, nullptr, n, a.inner, column, width, sums ? &*sums : nullptr};
      if (sums) sums->begin(first, last - first, width);
      scatter_range(loop_of(op, dtype), y, u, a.inner * size, positions, o * index_step, n, task, first, last);
      if (sums) sums->end();
    }
  });
}

// Adds an entry to the table. The entry lives as long as the program.
struct AddKernel {
  std::vector<const kernels::Scatter*>& table;

  template <class R> void operator()(R entry, const char* name) const {
    using Op = typename R::Functor;
    static const ScatterKernel op = [&] {
      if constexpr (R::kMoves)
        return ScatterKernel{
            kernels::scatter_of(entry, name),
            {scatter_loop<Op, uint8_t>, scatter_loop<Op, uint16_t>, scatter_loop<Op, uint32_t>, scatter_loop<Op, uint64_t>},
            true,
            false};
      else
        return ScatterKernel{kernels::scatter_of(entry, name),
                             {scatter_loop<Op, float>, scatter_loop<Op, double>, scatter_loop<Op, int64_t>,
                              scatter_loop<Op, uint64_t>, scatter_loop<Op, bool>},
                             false,
                             kHasLongSums<Op, float>};
    }();
    table.push_back(&op);
  }
};

// Returns the target in the working dtype: `out` itself, or scratch memory that is copied to `out` at the end.
View working_target(const View& out, DType working, Scratch& scratch) {
  if (out.dtype == working) return out;
  return contiguous_view(scratch.take_bytes(out.size() * item_size(working)), working, out);
}

// Computes target[index[j, i], i] += updates[j, i] for columns [first, last) of one outer slice.
template <class C, class Combine>
void combine_columns(C* __restrict y, const C* __restrict u, const Positions& positions, int64_t skip, int64_t n, int64_t inner,
                     int64_t first, int64_t last, Combine combine) {
  int64_t near[Positions::kBlock];
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = first; i < last; i += Positions::kBlock) {
      const int64_t count = std::min(Positions::kBlock, last - i);
      const int64_t* index = positions.block(skip + j * inner + i, count, near);
      if (!index) return;
      for (int64_t k = 0; k < count; ++k) {
        const int64_t column = i + k;
        combine(index[k] * (last - first) + column - first, y + index[k] * inner + column, u[j * inner + column]);
      }
    }
}

template <class C> void add_along(C* y, const C* u, const Positions& positions, int64_t n, const AxisSplit& a) {
  const Cut cut = cut_for(a, n);
  parallel_for(a.outer * cut.blocks, 1, [&](int64_t begin, int64_t end) {
    std::optional<LongSums> sums;
    if (kHasLongSums<Add, C> && n > kSumBlock) sums.emplace(a.length * cut.width, n * cut.width, 1);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t o = unit / cut.blocks, first = unit % cut.blocks * cut.width, skip = o * n * a.inner;
      const int64_t last = std::min(a.inner, first + cut.width);
      const auto combine = [&](const auto& how) {
        combine_columns(y + o * a.length * a.inner, u + skip, positions, skip, n, a.inner, first, last, how);
      };
      if constexpr (kHasLongSums<Add, C>)
        if (sums) {
          sums->begin(0, a.length * (last - first), 1);
          combine(AddCounted(*sums));
          sums->end();
          continue;
        }
      combine(Combine<Add>{});
    }
  });
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

using namespace cpu;

const std::vector<const Scatter*>& scatters() {
  static const std::vector<const Scatter*> table = [] {
    std::vector<const Scatter*> entries;
    each_scatter(AddKernel{entries});
    return entries;
  }();
  return table;
}

void index_write(const Launch& launch) {
  const ScatterKernel& op = op_of(launch);
  const View& out = launch.out();
  const int axis = int(launch.ints[0]);
  const DType working = working_type(op, out.dtype);
  Scratch scratch;
  const View target = working_target(out, working, scratch);
  const View updates = contiguous_as(working, launch.in(2), scratch);
  with_positions(launch.in(1), out.shape[axis], op.negative, scratch, [&](const Positions& positions) {
    assign(target, launch.in(0));
    scatter(op, out.dtype, target.data, updates.data, positions, 0, launch.in(1).size(), split_at(out, axis));
  });
  if (target.data != out.data) assign(out, target);
}

void scatter_write(const Launch& launch) {
  const ScatterKernel& op = op_of(launch);
  const View& out = launch.out();
  const int axis = int(launch.ints[0]);
  const DType working = working_type(op, out.dtype);
  Scratch scratch;
  const View target = working_target(out, working, scratch);
  const View updates = contiguous_as(working, launch.in(1), scratch);
  with_positions(launch.in(0), out.shape[axis], op.negative, scratch, [&](const Positions& positions) {
    assign_number(target, identity_of(op.identity, out.dtype, working));
    scatter(op, out.dtype, target.data, updates.data, positions, 0, launch.in(0).size(), split_at(out, axis));
  });
  if (target.data != out.data) assign(out, target);
}

void along_axis_add(const Launch& launch) {
  const ScatterKernel& op = op_of(launch);
  const View& out = launch.out();
  const int axis = int(launch.ints[0]);
  const AxisSplit a = split_at(out, axis);
  const int64_t n = launch.in(1).shape[axis];
  const DType working = working_type(op, out.dtype);
  Scratch scratch;
  const View target = working_target(out, working, scratch);
  const View updates = contiguous_as(working, launch.in(1), scratch);
  with_positions(launch.in(0), a.length, op.negative, scratch, [&](const Positions& positions) {
    assign_number(target, 0);
    if (updates.size() == 0) return;  // there are as many indices as updates
    if (a.inner == 1) {
      scatter(op, out.dtype, target.data, updates.data, positions, n, n, a);
    } else {
      visit(compute_type(out.dtype), [&](auto t) {
        using C = typename decltype(t)::type;
        add_along(target.as<C>(), updates.as<C>(), positions, n, a);
      });
    }
  });
  if (target.data != out.data) assign(out, target);
}

}  // namespace pb::kernels
