// Runs the reduction loops over any layout.
#include "cpu/reduce.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "cpu/pool.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"
#include "families/reduce.h"

namespace pb::cpu {
namespace {

constexpr int64_t kGrain = 32 * 1024;          // the fewest elements per thread
constexpr int64_t kTile = 512;                 // columns that are reduced together, so that the groups stay in the L2 cache
constexpr int64_t kStagedBytes = 128 * 1024;   // a block that is copied first, so that the copy stays in the L2 cache
constexpr int64_t kShort = 64;                 // rows of fewer elements do not fill vectors
constexpr int64_t kNarrow = 16;                // the rows of a matrix of fewer columns are prefetched, ...
constexpr int64_t kPrefetchedBytes = 4 << 20;  // ... if the operand has at least this size; smaller ones are in a cache
constexpr int64_t kAheadBytes = 16 * 1024;     // the distance at which the prefetched rows arrive in time

// Cells are matrices of `rows` by `width` elements that are reduced over their rows. Strides are in elements.
struct Cells {
  int64_t count, stride;  // the number of cells, and the distance between two
  int64_t rows, row_stride, width;
  bool prefetched;
};

// Reduces one cell. If it has several blocks, they have at most kTile results.
template <class R, class A> inline void reduce_cell(const Cells& cell, const A* x, A* lanes, A* out) {
  if (cell.rows <= kOrderBlock) return reduce_block<R>(cell.rows, cell.width, x, cell.row_stride, lanes, out);
  A blocks[kTile];
  for (int64_t row = 0; row < cell.rows; row += kOrderBlock, x += kOrderBlock * cell.row_stride) {
    if (cell.prefetched) Prefetch<A>{x + kAheadBytes / sizeof(A)}(0, kOrderBlock * cell.width);
    reduce_block<R>(std::min(kOrderBlock, cell.rows - row), cell.width, x, cell.row_stride, lanes,
                    blocks + row / kOrderBlock * cell.width);
  }
  reduce_pairs<R>(kernels::order_blocks(cell.rows), cell.width, blocks);
  std::copy_n(blocks, cell.width, out);
}

// Reduces cells of a single column with fewer than kShort rows. They become the columns of a matrix, so that vectors are full.
template <class R, class A>
void reduce_short(int64_t cells, int64_t stride, int64_t rows, const A* x, A* lanes, A* out) {
  alignas(64) A columns[kShort * kShort];
  for (int64_t k = 0; k < cells; k += kShort, x += kShort * stride) {
    const int64_t count = std::min(kShort, cells - k);
    for (int64_t row = 0; row < rows; ++row)
#pragma GCC unroll 4
      for (int64_t j = 0; j < count; ++j) columns[row * count + j] = x[j * stride + row];
    reduce_block<R>(rows, count, columns, count, lanes, out + k);
  }
}

// Sets results[cell * width + column] for all cells.
template <class R, class A> void reduce_cells(const Cells& cells, const void* operand, void* memory, void* results) {
  const A* x = static_cast<const A*>(operand);
  A *lanes = static_cast<A*>(memory), *out = static_cast<A*>(results);
  if (cells.width == 1 && cells.rows < kShort && cells.count > 2)
    return reduce_short<R>(cells.count, cells.stride, cells.rows, x, lanes, out);
  for (int64_t k = 0; k < cells.count; ++k) reduce_cell<R>(cells, x + k * cells.stride, lanes, out + k * cells.width);
}
template <class R, class A> void reduce_blocks(int64_t blocks, int64_t width, void* x) {
  reduce_pairs<R>(blocks, width, static_cast<A*>(x));
}
template <class R, class A> void fill_identity(int64_t n, void* results) {
  std::fill_n(static_cast<A*>(results), n, R::template identity<A>());
}

// A reduction with its loops by compute type. They are null for types that the reduction is not defined for.
struct ReductionKernel : kernels::Reduction {
  void (*cells[kComputes])(const Cells& cells, const void* x, void* lanes, void* results);
  void (*blocks[kComputes])(int64_t blocks, int64_t width, void* x);
  void (*identity[kComputes])(int64_t n, void* results);
};

// An operand as a matrix, cut into tiles of columns and runs of rows. A run is a power of two of blocks, so by rule 3 it can be
// reduced independently of the others. The results do not depend on the cut.
struct TiledMatrix {
  kernels::Matrix m;
  View all;         // the operand, with its axes in the order cells, rows, width
  Compute compute;  // the type that the elements are converted to
  bool direct;      // the elements are read in place, not from a copy
  bool prefetched;  // cells are
  int64_t row_stride, tile, tiles, run, runs;

  TiledMatrix(const View& x, int64_t mask, Compute compute) : m(kernels::matrix_of(x, mask)), all(m.outer), compute(compute) {
    for (const View& part : {m.reduced, m.inner})
      for (int d = 0; d < part.ndim; ++d) all.shape[all.ndim] = part.shape[d], all.stride[all.ndim++] = part.stride[d];
    collapse(&all, 1);
    const int64_t size = item_size(x.dtype);
    row_stride = m.reduced.ndim ? m.reduced.stride[0] / size : m.width;
    direct =
        x.dtype == storage_of(compute) && m.reduced.ndim <= 1 && (m.inner.ndim ? m.inner.stride[0] == size : row_stride == 1);
    prefetched = direct && m.width < kNarrow && row_stride == m.width && x.bytes() >= kPrefetchedBytes;
    tile = std::min(m.width, direct ? kTile : kStagedBytes / (kOrderBlock * compute_size(compute)));
    tiles = tile ? (m.width + tile - 1) / tile : 0;
    run = kOrderBlock;
    while (run < m.rows && 2 * run * tile <= (direct ? kGrain : kBlock)) run *= 2;
    runs = (m.rows + run - 1) / run;
  }
  int64_t tasks() const { return m.cells * runs * tiles; }
  int64_t rows_of_task() const { return std::min(m.rows, run); }
  // Returns the number of cells that are reduced together.
  int64_t most_cells() const {
    if (runs * tiles > 1) return 1;
    return std::max<int64_t>(1, kBlock / (direct ? m.width : m.rows * m.width));
  }
};

// Returns the address of the cells from number `cell` on. Lowers cells.count if one stride does not reach all of them.
const char* find_cells(const TiledMatrix& tiled, int64_t cell, int64_t row, int64_t column, Cells& cells) {
  const View& outer = tiled.m.outer;
  const int64_t size = compute_size(tiled.compute);
  const char* p = outer.data + (row * tiled.row_stride + column) * size;
  for (int d = outer.ndim - 1; d >= 0; --d) {
    const int64_t at = d > 0 ? cell % outer.shape[d] : cell;
    if (d > 0) cell /= outer.shape[d];
    p += at * outer.stride[d];
    if (d < outer.ndim - 1) continue;
    cells.count = std::min(cells.count, outer.shape[d] - at);
    cells.stride = outer.stride[d] / size;
  }
  cells.row_stride = tiled.row_stride;
  return p;
}

// Copies the cells from number `cell` on next to each other.
const void* stage_cells(const TiledMatrix& tiled, int64_t cell, int64_t row, int64_t column, Reader& reader, Cells& cells,
                        char* staged) {
  cells.stride = cells.rows * cells.width, cells.row_stride = cells.width;
  const int64_t start = (cell * tiled.m.rows + row) * tiled.m.width + column;
  if (tiled.tiles == 1) return reader.block(start, cells.count * cells.stride, staged);
  alignas(64) char line[kStagedBytes / kOrderBlock];
  const int64_t bytes = cells.width * compute_size(tiled.compute);
  for (int64_t r = 0; r < cells.rows; ++r)
    std::memcpy(staged + r * bytes, reader.block(start + r * tiled.m.width, cells.width, line), bytes);
  return staged;
}

// The memory for results.
struct Target {
  char* data;
  DType dtype;
  Compute compute;  // the type of the results
  int64_t divisor;  // every result is divided by it

  // Finishes and stores n results from number i on. They may be in place.
  void store(int64_t i, int64_t n, void* results) const {
    if (divisor != 1) divide(n, results);
    char* out = data + i * item_size(dtype);
    if (out != results) cpu::store(compute, dtype, results, n, out, item_size(dtype));
  }

 private:
  void divide(int64_t n, void* results) const {
    if (compute == Compute::f32)
      for (int64_t i = 0; i < n; ++i) static_cast<float*>(results)[i] /= float(divisor);
    else
      for (int64_t i = 0; i < n; ++i) static_cast<double*>(results)[i] /= double(divisor);
  }
};

// Runs tasks [begin, end). The results of a task are those of a run of rows in a tile of columns.
void reduce_range(const ReductionKernel& op, const TiledMatrix& tiled, const Target& target, int64_t begin, int64_t end) {
  alignas(64) char results[kBlockBytes];
  static_assert(kTile <= kBlock);
  const int64_t size = compute_size(tiled.compute), most = tiled.most_cells(), rows_of_task = tiled.rows_of_task();
  Scratch scratch;
  char* lanes = scratch.take<char>(groups_of(std::min(kOrderBlock, rows_of_task)) * std::max(tiled.tile, kShort) * size);
  char* staged = tiled.direct ? nullptr : scratch.take<char>(most * rows_of_task * tiled.tile * size);
  Reader reader;
  if (!tiled.direct) reader = Reader(tiled.all, tiled.compute);
  for (int64_t task = begin; task < end;) {
    const int64_t tile = task % tiled.tiles, run = task / tiled.tiles % tiled.runs, cell = task / tiled.tiles / tiled.runs;
    const int64_t row = run * tiled.run, column = tile * tiled.tile;
    Cells cells{std::min(most, end - task),
                0,
                std::min(tiled.run, tiled.m.rows - row),
                0,
                std::min(tiled.tile, tiled.m.width - column),
                tiled.prefetched};
    const void* x = tiled.direct ? find_cells(tiled, cell, row, column, cells)
                                 : stage_cells(tiled, cell, row, column, reader, cells, staged);
    const int64_t result = (cell * tiled.runs + run) * tiled.m.width + column;
    void* to = target.dtype == storage_of(target.compute) ? target.data + result * size : results;
    op.cells[int(tiled.compute)](cells, x, lanes, to);
    target.store(result, cells.count * cells.width, to);
    task += cells.count;
  }
}

void fill_with_nothing(const ReductionKernel& op, const Target& target, int64_t n) {
  alignas(64) char results[kBlockBytes];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t part = std::min(kBlock, n - i);
    op.identity[int(target.compute)](part, results);
    target.store(i, part, results);
  }
}

void reduce(const Launch& launch) {
  const auto& op = static_cast<const ReductionKernel&>(*static_cast<const kernels::Reduction*>(launch.table));
  const View& out = launch.out();
  const Compute compute = kernels::read_as(op, launch.in().dtype);
  const TiledMatrix tiled(launch.in(), launch.ints[0], compute);
  const auto [cells, rows, width] = std::tuple(tiled.m.cells, tiled.m.rows, tiled.m.width);
  const Target target{out.data, out.dtype, compute, op.divides ? rows : 1};
  if (cells * width == 0) return;
  if (rows == 0) return fill_with_nothing(op, target, cells * width);
  const auto reduce_runs = [&](const Target& to) {
    parallel_for(tiled.tasks(), std::max<int64_t>(1, kGrain / (tiled.rows_of_task() * tiled.tile)),
                 [&](int64_t begin, int64_t end) { reduce_range(op, tiled, to, begin, end); });
  };
  if (tiled.runs == 1) return reduce_runs(target);
  Scratch scratch;
  const int64_t bytes = tiled.runs * width * compute_size(compute);
  char* partial = scratch.take<char>(cells * bytes);
  reduce_runs({partial, storage_of(compute), compute, 1});
  parallel_for(cells, std::max<int64_t>(1, kGrain / (tiled.runs * width)), [&](int64_t begin, int64_t end) {
    for (int64_t cell = begin; cell < end; ++cell) {
      op.blocks[int(compute)](tiled.runs, width, partial + cell * bytes);
      target.store(cell * width, width, partial + cell * bytes);
    }
  });
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
      op.cells[k] = reduce_cells<F, C>;
      op.blocks[k] = reduce_blocks<F, C>;
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
