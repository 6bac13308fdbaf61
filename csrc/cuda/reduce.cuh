// Chooses the kernels of reductions, and sets the kernels of each row of the table of reductions.
#pragma once
#include <cstdlib>

#include "cuda/reduce_columns.cuh"
#include "cuda/reduce_rows.cuh"
#include "families/reduce.h"

namespace pb::cuda {

// From this number of elements on, each thread takes four columns; with fewer elements, more threads are faster.
constexpr int64_t kManyElements = 1 << 19;
constexpr int64_t kAcrossCells = 8;  // this many neighbouring cells suffice to give each cell a thread

// True if the elements along `along` lie in whole packs of four, for all positions on the other axes.
inline bool whole_packs(const View& along, const View& outer, const View& rows) {
  const int64_t item = item_size(along.dtype), pack = 4 * item, last = along.ndim - 1;
  bool whole = last >= 0 && along.stride[last] == item && reinterpret_cast<uintptr_t>(along.data) % pack == 0;
  if (last > 0) whole = whole && along.shape[last] % 4 == 0;
  for (const View* v : {&along, &outer, &rows})
    for (int d = 0; d < v->ndim; ++d) whole = whole && (v->stride[d] % pack == 0 || (v == &along && d == last));
  return whole;
}

// True if there are kernels that read packs. Products are too rare to justify the code size.
template <class R, class C> constexpr bool kByPacks = kHasPacks<C> && !std::is_same_v<R, prod_reduce>;

// True if there are enough neighbouring cells, and they lie closer together than the rows of a cell.
inline bool cells_are_neighbours(const kernels::Matrix& m) {
  const int last = m.outer.ndim - 1;
  return last >= 0 && m.outer.shape[last] >= kAcrossCells &&
         std::abs(m.outer.stride[last]) < std::abs(m.reduced.stride[m.reduced.ndim - 1]);
}

// Returns the number of teams of a block of threads that share a cell.
inline int teams_for(int64_t blocks) {
  int teams = 1;
  while (teams < kTeams && teams < blocks) teams *= 2;
  return teams;
}

template <class R, class C, class A> void reduce_rows(const kernels::Matrix& m, Folding& f) {
  if (m.rows <= kShortRows) return start(fold_short<R, C, A>, blocks_for(m.cells), kThreads, 0, f);
  const int64_t blocks = f.levels.blocks[0];
  if (cells_are_neighbours(m)) {
    f.blocks_per_unit = unsigned(blocks);
    return start_units(fold_across<R, C, A>, f, (m.cells + kTileCells - 1) / kTileCells, kTileCells * kTileWarps);
  }
  f.teams = teams_for(blocks);
  f.blocks_per_unit = unsigned((blocks + kTeams - 1) / kTeams);
  const int64_t units = blocks <= kTeams ? (m.cells * f.teams + kTeams - 1) / kTeams : m.cells;
  if constexpr (kByPacks<R, C>)
    if (whole_packs(m.reduced, m.outer, {})) return start_units(fold_along<R, C, A, true>, f, units, kRowThreads);
  start_units(fold_along<R, C, A, false>, f, units, kRowThreads);
}

template <class R, class C, class A> void reduce_columns(const kernels::Matrix& m, Folding& f) {
  const int64_t blocks = f.levels.blocks[0], groups = f.levels.groups, lanes = groups * m.width;
  const int64_t row = m.width * item_size(m.outer.dtype);
  bool packs = kByPacks<R, C> && m.cells * m.rows * m.width >= kManyElements && lanes % 4 == 0 && m.reduced.ndim == 1 &&
               m.inner.ndim == 1;
  if (groups == 1) packs = packs && whole_packs(m.inner, m.outer, m.reduced);
  else packs = packs && whole_packs(m.inner, m.outer, {}) && m.reduced.stride[0] == row;
  const unsigned across = packs || groups == 1 ? kWarp : kColumnThreads;
  while (f.teams * across < kColumnThreads && f.teams < blocks) f.teams *= 2;
  const int64_t tile = int64_t(across) * (packs ? 4 : 1);
  f.tiles = (lanes + tile - 1) / tile;
  f.blocks_per_unit = unsigned((blocks + f.teams - 1) / f.teams);
  if constexpr (kByPacks<R, C>)
    if (packs) return start_units(fold_columns<R, C, A, 4>, f, m.cells * f.tiles, f.teams * across);
  start_units(fold_columns<R, C, A, 1>, f, m.cells * f.tiles, f.teams * across);
}

// Returns m with the layout of a copy of its operand at `data`, in which the rows are a single axis.
kernels::Matrix straightened(const kernels::Matrix& m, char* data);
// Copies the operand of m into that layout.
void straighten(kernels::Matrix& m, Scratch& scratch);

// The result of a reduction over no rows: the identity.
template <class R, class A> __global__ void __launch_bounds__(kThreads) fill_identity(const __grid_constant__ Folding f) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < f.cells * f.width) f.finish(i, R::template identity<A>());
}

template <class R, class C, class A, bool kMirrors = false> void reduce_as(const Launch& launch) {
  const auto& op = *static_cast<const kernels::Reduction*>(launch.table);
  kernels::Matrix m = kernels::matrix_of(launch.in(), launch.ints[0]);
  if (m.cells * m.width == 0) return;
  Scratch scratch;
  if (m.rows > 0 && !RowAxes::takes(m.reduced)) straighten(m, scratch);
  Folding f(m, launch.out(), op.divides);
  f.mirrors = kMirrors;
  if (f.levels.partials > 0) f.partial = scratch.take<A>(f.levels.partials);
  if (m.rows == 0) start(fill_identity<R, A>, blocks_for(m.cells * m.width), kThreads, 0, f);
  else if (m.width == 1) reduce_rows<R, C, A>(m, f);
  else reduce_columns<R, C, A>(m, f);
}

// A reduction with its kernels by compute type; null for compute types that it does not support.
struct ReductionKernel : kernels::Reduction {
  void (*kernels[kComputes])(const Launch&);
  bool mirrors = false;
};

inline void run_reduced(const Launch& launch) {
  const auto& op = static_cast<const ReductionKernel&>(*static_cast<const kernels::Reduction*>(launch.table));
  op.kernels[int(kernels::read_as(op, launch.in().dtype))](launch);
}

template <class R, class C> void set_kernel(ReductionKernel& op) { op.kernels[int(compute_of<C>)] = reduce_as<R, C, C>; }

// Sets the kernels of a row of math/reduce.def. This is the definition for sums and products. They take longest to compile, so each
// is instantiated in a source that CMake generates; the others are defined in reduce_extremes.cu.
template <class R> void set_kernels(ReductionKernel& op) {
  set_kernel<R, float>(op), set_kernel<R, double>(op), set_kernel<R, int64_t>(op);
  op.kernels[int(Compute::u64)] = op.kernels[int(Compute::i64)];  // modulo 2^64, where int64 and uint64 give the same bits
}
extern template void set_kernels<sum_reduce>(ReductionKernel& op);
extern template void set_kernels<prod_reduce>(ReductionKernel& op);
template <> void set_kernels<max_reduce>(ReductionKernel& op);
template <> void set_kernels<min_reduce>(ReductionKernel& op);
template <> void set_kernels<any_reduce>(ReductionKernel& op);
template <> void set_kernels<all_reduce>(ReductionKernel& op);

}  // namespace pb::cuda
