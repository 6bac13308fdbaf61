// Runs the reduction loops over any layout. Cells of a fixed shape are reduced first, then the results of the cells, until one is
// left.
#include "cpu/reduce.h"

#include <algorithm>
#include <cstring>

#include "cpu/pool.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"
#include "families/reduce.h"

namespace pb::cpu {
namespace {

constexpr int64_t kGrain = 32 * 1024;  // the fewest elements per thread
constexpr int64_t kTile = 1024;        // columns of a cell that is read in place, so that its lanes stay in the L1 cache
constexpr int64_t kStagedTile = 128;   // columns of a cell that is copied first
constexpr int64_t kPad = 16;           // elements that keep the rows of a transposed copy from sharing cache sets
constexpr int64_t kStagedBytes = kColumnDepth * (kStagedTile + kPad) * 8;

// One pass over an operand [outer, rows, width], cut into blocks of rows and tiles of columns.
struct Level {
  View all;         // the operand, with its axes in the order outer, rows, width
  View outer;       // its outer axes
  Compute compute;  // the type that the elements are converted to
  int64_t cells, rows, width;
  int64_t groups, block, blocks, tile, tiles;
  int64_t row_stride, column_stride;  // in bytes
  // The way in which cells are read. direct: in place. ordered: from a copy. crossed: from a transposed copy, because the last axis
  // is not the one with the smallest stride.
  enum { direct, ordered, crossed } access;

  int64_t tasks() const { return cells * blocks * tiles; }
  // True if consecutive tasks are consecutive cells of the same block of rows. This changes the layout of the results, not the
  // order in which elements are combined.
  bool by_block() const { return access == crossed && width == 1; }
};

// The memory for the results of a level, in the order of the tasks' cells.
struct Target {
  char* data;
  DType dtype;
  Compute compute;  // the type of the results
  int64_t divisor;  // every result is divided by it
};

void cut(Level& level) {
  const kernels::Cut c = kernels::cut(level.rows, level.width);
  level.groups = c.groups, level.block = c.block, level.blocks = c.blocks;
  const int64_t width = std::max<int64_t>(1, level.width);
  level.tile = std::min(width, level.access == Level::direct ? kTile : kStagedTile);
  level.tiles = (width + level.tile - 1) / level.tile;
}

Level first_level(const View& x, int64_t mask, Compute compute) {
  const kernels::Matrix m = kernels::matrix_of(x, mask);
  Level level;
  level.all = level.outer = m.outer;
  for (const View& part : {m.reduced, m.inner})
    for (int d = 0; d < part.ndim; ++d)
      level.all.shape[level.all.ndim] = part.shape[d], level.all.stride[level.all.ndim++] = part.stride[d];
  collapse(&level.all, 1);
  level.compute = compute;
  level.cells = m.cells, level.rows = m.rows, level.width = m.width;

  const int64_t size = item_size(x.dtype), row = level.width * size;
  level.row_stride = m.reduced.ndim ? m.reduced.stride[0] : row;
  level.column_stride = m.inner.ndim ? m.inner.stride[0] : size;
  const bool regular = m.reduced.ndim <= 1 && m.inner.ndim <= 1;
  const bool packed = level.column_stride == size && (level.width >= kLanes || level.row_stride == row);
  const int64_t across = level.width > 1        ? level.row_stride
                         : level.outer.ndim > 0 ? level.outer.stride[level.outer.ndim - 1]
                                                : INT64_MAX;
  const int64_t along = level.width > 1 ? level.column_stride : level.row_stride;
  level.access = regular && packed && x.dtype == storage_of(compute) ? Level::direct
                 : regular && std::abs(across) < std::abs(along)     ? Level::crossed
                                                                     : Level::ordered;
  cut(level);
  return level;
}

// Returns the next level, whose operand is the results of `level`.
Level next_level(const Level& level, void* results, Compute compute) {
  const int64_t size = compute_size(compute);
  Level next;
  next.compute = compute;
  next.cells = level.cells, next.rows = level.blocks, next.width = level.width;
  next.access = level.by_block() ? Level::crossed : Level::direct;
  next.row_stride = (level.by_block() ? next.cells : next.width) * size;
  next.column_stride = size;
  next.outer = flat_view(results, storage_of(compute), next.cells);
  next.outer.stride[0] = level.by_block() ? size : next.rows * next.row_stride;
  cut(next);
  return next;
}

// The position of a task: its first cell, the rows and columns of the cell, and the index of its first result.
struct TaskPosition {
  int64_t cell, row, rows, column, columns, result;
};
TaskPosition position_of(const Level& level, int64_t task) {
  TaskPosition p;
  const int64_t tile = task % level.tiles, rest = task / level.tiles;
  const int64_t block = level.by_block() ? rest / level.cells : rest % level.blocks;
  p.cell = level.by_block() ? rest % level.cells : rest / level.blocks;
  p.row = block * level.block;
  p.rows = std::min(level.block, level.rows - p.row);
  p.column = tile * level.tile;
  p.columns = std::min(level.tile, level.width - p.column);
  p.result = level.by_block() ? rest : rest * level.width + p.column;
  return p;
}

// Returns the address of the cells from `position` on, to read them in place. Lowers cells.count if one stride does not reach all
// of them.
const char* find_cells(const Level& level, const TaskPosition& position, Cells& cells) {
  const int64_t size = compute_size(level.compute);
  const char* p = level.outer.data + position.row * level.row_stride + position.column * level.column_stride;
  int64_t rest = position.cell;
  cells.stride = 0;
  for (int d = level.outer.ndim - 1; d >= 0; --d) {
    const int64_t at = d > 0 ? rest % level.outer.shape[d] : rest;
    if (d > 0) rest /= level.outer.shape[d];
    p += at * level.outer.stride[d];
    if (d == level.outer.ndim - 1) {
      cells.count = std::min(cells.count, level.outer.shape[d] - at);
      cells.stride = level.outer.stride[d] / size;
    }
  }
  cells.row_stride = level.row_stride / size;
  return p;
}

// Copies the cells from `position` on next to each other, unless one block of the reader holds them all.
const void* stage_cells(const Level& level, const TaskPosition& position, Reader& reader, Cells& cells, char* staged,
                        char* piece) {
  const int64_t size = compute_size(level.compute);
  cells.row_stride = position.columns;
  cells.stride = position.rows * position.columns;
  const int64_t line = level.tiles > 1 ? position.columns : cells.count * cells.stride;
  const int64_t lines = level.tiles > 1 ? position.rows : 1;
  const int64_t start = (position.cell * level.rows + position.row) * level.width + position.column;
  if (lines == 1 && line <= kBlock) return reader.block(start, line, piece);
  char* out = staged;
  for (int64_t l = 0; l < lines; ++l) {
    for (int64_t i = 0; i < line; i += kBlock) {
      const int64_t n = std::min(kBlock, line - i);
      std::memcpy(out, reader.block(start + l * level.width + i, n, piece), n * size);
      out += n * size;
    }
  }
  return staged;
}

// Transposes lines of n elements: line l becomes column l of the matrix at `out`. The lines are `line` bytes apart.
void load_crossed(const Level& level, const char* p, int64_t lines, int64_t line, int64_t n, int64_t stride, int64_t width,
                  char* out) {
  alignas(64) char piece[kBlockBytes];
  visit(level.compute, [&](auto tag) {
    using C = typename decltype(tag)::type;
    for (int64_t i = 0; i < n; i += kBlock) {
      const int64_t part = std::min(kBlock, n - i);
      for (int64_t l = 0; l < lines; ++l) {
        load(level.outer.dtype, level.compute, p + l * line + i * stride, stride, part, piece);
        C* column = reinterpret_cast<C*>(out) + i * width + l;
        for (int64_t k = 0; k < part; ++k) column[k * width] = reinterpret_cast<const C*>(piece)[k];
      }
    }
  });
}

const void* stage_crossed(const Level& level, const TaskPosition& position, Cells& cells, char* staged) {
  const char* p = find_cells(level, position, cells);
  if (level.width == 1) {
    cells.stride = position.rows + kPad;
    load_crossed(level, p, position.rows, level.row_stride, cells.count, level.outer.stride[level.outer.ndim - 1], cells.stride,
                 staged);
  } else {
    cells.row_stride = position.columns + (level.groups == 1 ? kPad : 0);
    load_crossed(level, p, position.columns, level.column_stride, position.rows, level.row_stride, cells.row_stride, staged);
  }
  return staged;
}

// Returns the largest number of cells that consecutive tasks may process together.
int64_t most_cells(const Level& level) {
  const int64_t rows = std::min(level.rows, level.block);
  if (level.by_block()) return std::clamp<int64_t>(kStagedBytes / ((rows + kPad) * compute_size(level.compute)), 1, kLanes);
  if (level.blocks > 1 || level.tiles > 1 || level.access == Level::crossed) return 1;
  return std::max<int64_t>(1, kBlock / (level.access == Level::direct ? level.width : rows * level.width));
}

void divide(const Target& target, int64_t n, void* results) {
  if (target.compute == Compute::f32)
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(results)[i] /= float(target.divisor);
  else
    for (int64_t i = 0; i < n; ++i) static_cast<double*>(results)[i] /= double(target.divisor);
}

void fold_range(const Level& level, Fold fold, const Target& target, int64_t begin, int64_t end) {
  alignas(64) char staged[kStagedBytes], piece[kBlockBytes], results[kBlockBytes];
  static_assert(kTile <= kBlock);
  Reader reader;
  if (level.access == Level::ordered) reader = Reader(level.all, level.compute);
  const bool in_place = target.dtype == storage_of(target.compute);
  const int64_t size = item_size(target.dtype), most = most_cells(level);
  for (int64_t task = begin; task < end;) {
    const TaskPosition position = position_of(level, task);
    Cells cells{std::min(most, end - task), 0, position.rows, 0, position.columns, level.groups};
    const void* x = level.access == Level::direct    ? find_cells(level, position, cells)
                    : level.access == Level::ordered ? stage_cells(level, position, reader, cells, staged, piece)
                                                     : stage_crossed(level, position, cells, staged);
    const int64_t n = cells.count * position.columns;
    char* out = target.data + position.result * size;
    void* folded = in_place ? out : results;
    fold(cells, x, folded);
    if (target.divisor != 1) divide(target, n, folded);
    if (!in_place) store(target.compute, target.dtype, results, n, out, size);
    task += cells.count;
  }
}

void fold_level(const Level& level, Fold fold, const Target& target) {
  const int64_t task = std::max<int64_t>(1, std::min(level.rows, level.block) * level.tile);
  parallel_for(level.tasks(), std::max<int64_t>(1, kGrain / task),
               [&](int64_t begin, int64_t end) { fold_range(level, fold, target, begin, end); });
}

void fill_with_nothing(const ReductionKernel& op, const Target& target, int64_t n) {
  alignas(64) char results[kBlockBytes];
  const int64_t size = item_size(target.dtype);
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t part = std::min(kBlock, n - i);
    op.identity[int(target.compute)](part, results);
    if (target.divisor != 1) divide(target, part, results);
    store(target.compute, target.dtype, results, part, target.data + i * size, size);
  }
}

void reduce(const Launch& launch) {
  const auto& op = static_cast<const ReductionKernel&>(*static_cast<const kernels::Reduction*>(launch.table));
  const View &x = launch.in(), &out = launch.out();
  const Compute from = kernels::read_as(op, x.dtype), to = op.predicate ? Compute::b8 : from;
  Level level = first_level(x, launch.ints[0], from);
  const Target target{out.data, out.dtype, to, op.divides ? level.rows : 1};
  const int64_t n = level.cells * level.width;
  if (n == 0) return;
  if (level.rows == 0) return fill_with_nothing(op, target, n);
  Scratch scratch;
  Fold fold = op.first[int(from)];
  while (level.blocks > 1) {
    char* partial = scratch.take<char>(n * level.blocks * compute_size(to));
    fold_level(level, fold, {partial, storage_of(to), to, 1});
    level = next_level(level, partial, to);
    fold = op.next[int(to)];
  }
  fold_level(level, fold, target);
}

// Adds an entry to the table. The entry lives as long as the program.
struct Add {
  std::vector<const kernels::Reduction*>& table;

  template <class R> void operator()(R entry, const char* name) const {
    static const ReductionKernel op = [&] {
      ReductionKernel kernel{kernels::reduction_of(entry, name, reduce), {}, {}, {}};
      set<R, float>(kernel), set<R, double>(kernel), set<R, int64_t>(kernel), set<R, uint64_t>(kernel), set<R, bool>(kernel);
      return kernel;
    }();
    table.push_back(&op);
  }
  template <class R, class C> static void set(ReductionKernel& op) {
    using F = typename R::Functions;
    if constexpr (R::takes(compute_of<C>)) {
      constexpr int k = int(compute_of<C>);
      op.first[k] = fold_cells<F, true, C, typename R::template Result<C>>;
      op.next[k] = fold_cells<F, false, C, C>;
      op.identity[k] = fill_identity<F, C>;
    }
  }
};

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

const std::vector<const Reduction*>& reductions() {
  static const std::vector<const Reduction*> table = [] {
    std::vector<const Reduction*> entries;
    each_reduction(cpu::Add{entries});
    return entries;
  }();
  return table;
}

}  // namespace pb::kernels
