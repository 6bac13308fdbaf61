// Positions of the largest or smallest elements along an axis. The first of equal elements wins, and NaN wins, as in NumPy.
#include <algorithm>

#include "cpu/pool.h"
#include "cpu/reduce.h"
#include "cpu/scratch.h"
#include "cpu/stream.h"
#include "families/reduce.h"

namespace pb::cpu {
namespace {

constexpr int64_t kGrain = 32 * 1024;   // the fewest elements per thread
constexpr int64_t kTile = 256;          // the number of columns that are processed at a time
constexpr int64_t kStep = 64;           // the number of elements that are searched at a time
constexpr int64_t kMostRows = 1 << 30;  // the most rows per piece, so that positions in a piece fit into 32 bits

using kernels::Largest;
using kernels::Smallest;

// x is viewed as [outer, rows, width] and cut into pieces of rows and tiles of columns. The result does not depend on the cut.
struct Tiling {
  View x;
  Compute compute;
  int64_t outer = 1, rows = 1, width = 1, piece = 1, pieces = 1, tile = 1, tiles = 1;
};
Tiling tiling_of(const View& x, int axis) {
  Tiling p;
  p.x = x;
  p.compute = compute_type(x.dtype);
  for (int d = 0; d < x.ndim; ++d) (d < axis ? p.outer : d == axis ? p.rows : p.width) *= x.shape[d];
  collapse(&p.x, 1);
  p.tile = std::min(p.width, kTile);
  p.tiles = p.tile ? (p.width + p.tile - 1) / p.tile : 0;
  const int64_t most = std::max<int64_t>(1, p.rows * p.tile / kGrain), tasks = std::max<int64_t>(1, p.outer * p.tiles);
  const int64_t wanted = std::max(std::min(most, 16 / std::min<int64_t>(tasks, 16)), (p.rows + kMostRows - 1) / kMostRows);
  p.piece = (p.rows + wanted - 1) / wanted;
  p.pieces = (p.rows + p.piece - 1) / p.piece;
  return p;
}

// Returns the position of the first of n elements that equals `value`, which is one of them. All NaNs are equal here.
template <class C> int64_t find_first(int64_t n, const C* x, C value) {
  const auto hit = [value](C a) { return (a == value) | ((a != a) & (value != value)); };
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    int hits = 0;
    for (int64_t j = 0; j < kStep; ++j) hits += hit(x[i + j]);
    if (hits) break;
  }
  while (!hit(x[i])) ++i;
  return i;
}

// Finds the best of the elements [start, start + n) of the view, in order, and its position among them.
template <class R, class C> void best_of_row(Reader& reader, int64_t start, int64_t n, C* best, int64_t* at) {
  alignas(64) char buffer[kBlockBytes];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    const C* x = static_cast<const C*>(reader.block(start + i, count, buffer));
    const C value = reduce_row<R, C>(count, [x](int64_t j) { return x[j]; });
    if (i > 0 && !R::better(value, *best)) continue;
    *best = value;
    *at = i + find_first(count, x, value);
    if (value != value) return;
  }
}

// Finds the best element of each of `columns` neighbouring columns, whose rows are `width` elements apart, and its row.
template <class R, class C>
void best_of_columns(Reader& reader, int64_t start, int64_t rows, int64_t width, int64_t columns, C* best, int64_t* at) {
  using Index = std::conditional_t<sizeof(C) == 8, int64_t, int32_t>;  // as wide as C: vectors of both have equal lanes
  alignas(64) char buffer[kBlockBytes];
  alignas(64) Index row_of[kTile] = {};
  alignas(64) C value_of[kTile];
  C* value = value_of;
  Index* index = row_of;
  // Hides the arrays from gcc, which would otherwise make the stores of unchanged lanes conditional and not vectorize the loop.
  asm("" : "+r"(value), "+r"(index));
  for (int64_t row = 0; row < rows; ++row) {
    const C* x = static_cast<const C*>(reader.block(start + row * width, columns, buffer));
    if (row == 0) std::copy_n(x, columns, value);
#pragma GCC ivdep
    for (int64_t j = 0; j < columns; ++j) {
      const bool better = R::better(x[j], value[j]);
      value[j] = better ? x[j] : value[j];
      index[j] = better ? Index(row) : index[j];
    }
  }
  for (int64_t j = 0; j < columns; ++j) best[j] = value[j], at[j] = index[j];
}

// Finds the best element of each piece, and then the best of these.
template <class R, class C> void arg_reduce_as(const Tiling& p, int64_t* out) {
  const int64_t n = p.outer * p.width;
  Scratch scratch;
  C* best = scratch.take<C>(p.pieces > 1 ? n * p.pieces : 1);
  int64_t* at = p.pieces > 1 ? scratch.take<int64_t>(n * p.pieces) : out;
  const int64_t work = std::max<int64_t>(1, p.piece * p.tile);
  parallel_for(p.outer * p.pieces * p.tiles, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) {
    Reader reader(p.x, p.compute);
    alignas(64) C unused[kTile];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t tile = task % p.tiles, line = task / p.tiles;  // line numbers the pairs (outer, piece)
      const int64_t first = line % p.pieces * p.piece, rows = std::min(p.piece, p.rows - first);
      const int64_t column = tile * p.tile, columns = std::min(p.tile, p.width - column);
      const int64_t start = (line / p.pieces * p.rows + first) * p.width + column, to = line * p.width + column;
      C* values = p.pieces > 1 ? best + to : unused;
      if (p.width == 1) best_of_row<R>(reader, start, rows, values, at + to);
      else best_of_columns<R>(reader, start, rows, p.width, columns, values, at + to);
    }
  });
  if (p.pieces == 1) return;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t base = i / p.width * p.pieces * p.width + i % p.width;
    int64_t winner = 0;
    for (int64_t k = 1; k < p.pieces; ++k)
      if (R::better(best[base + k * p.width], best[base + winner * p.width])) winner = k;
    out[i] = winner * p.piece + at[base + winner * p.width];
  }
}

}  // namespace
}  // namespace pb::cpu

namespace pb::kernels {

void arg_reduce(const Launch& launch) {
  if (launch.out().size() == 0) return;
  const cpu::Tiling tiling = cpu::tiling_of(launch.in(), int(launch.ints[0]));
  int64_t* out = launch.out().as<int64_t>();
  visit(tiling.compute, [&](auto tag) {
    using C = typename decltype(tag)::type;
    if (launch.ints[1]) cpu::arg_reduce_as<Smallest, C>(tiling, out);
    else cpu::arg_reduce_as<Largest, C>(tiling, out);
  });
}

}  // namespace pb::kernels
