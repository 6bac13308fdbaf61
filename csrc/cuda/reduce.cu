// The table of reductions, and the copying of operands whose rows span several axes.
#include "cuda/reduce.cuh"

#include <algorithm>

namespace pb::cuda {
namespace {

// Adds an entry to the table. The entry lives as long as the program.
struct AddReduction {
  std::vector<const kernels::Reduction*>& table;

  template <class R> void operator()(R entry, const char* name) const {
    static const ReductionKernel op = [&] {
      ReductionKernel kernel{kernels::reduction_of(entry, name, run_reduced), {}};
      set_kernels<typename R::Functions>(kernel);
      return kernel;
    }();
    table.push_back(&op);
  }
};

template <class T> __global__ void __launch_bounds__(kThreads)
    copy_in_order(uint32_t n, const __grid_constant__ Walk<2> walk, char* to, const char* from) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= n) return;
  int64_t offset[2];
  walk.offsets(i, offset);
  *reinterpret_cast<T*>(to + offset[0]) = *reinterpret_cast<const T*>(from + offset[1]);
}

View axis_of(char* data, DType dtype, int64_t length, int64_t stride) {
  View v = flat_view(data, dtype, length);
  v.stride[0] = stride;
  return v;
}

// Returns the combinations of a team that reduces m rows beyond the necessary m - 1. In each of the last four halvings, threads
// repeat one another's combinations.
int64_t repeated_by_team(int64_t m) {
  int64_t done = 0;
  for (int64_t half = kTeam / 2; half > 0; half /= 2) done += std::clamp<int64_t>(m - half, 0, half) * (kTeam / half);
  return m > 0 ? done - (std::min<int64_t>(m, kTeam) - 1) : 0;
}

// Returns the repeated combinations of all teams, and of the threads that combine the results of up to eight teams.
int64_t repeated(const kernels::Matrix& m) {
  if (m.rows <= kShortRows || m.width != 1 || m.cells == 0) return 0;
  const Levels levels(m.cells, m.rows, m.width);
  const bool across = cells_are_neighbours(m);
  const int64_t blocks = levels.blocks[0];
  const bool alone = !across && blocks <= kTeams;
  int64_t each = 0;
  for (int level = across ? 1 : 0; level < (alone ? 1 : levels.count); ++level) {
    const int64_t rows = level ? levels.blocks[level - 1] : m.rows;
    each += rows / levels.block * repeated_by_team(levels.block) + repeated_by_team(rows % levels.block);
  }
  if (!alone || blocks == 1) return each * m.cells;
  const int64_t units = (m.cells * teams_for(blocks) + kTeams - 1) / kTeams;
  return each * m.cells + (blocks - 1) * (units * kRowThreads - m.cells);
}

}  // namespace

kernels::Matrix straightened(const kernels::Matrix& m, char* data) {
  const DType dtype = m.outer.dtype;
  const int64_t size = item_size(dtype);
  kernels::Matrix copy = m;
  copy.inner = axis_of(data, dtype, m.width, size);
  copy.reduced = axis_of(data, dtype, m.rows, size * m.width);
  copy.outer = axis_of(data, dtype, m.cells, size * m.width * m.rows);
  return copy;
}

void straighten(kernels::Matrix& m, Scratch& scratch) {
  View views[2] = {m.outer, m.outer};
  for (const View* part : {&m.reduced, &m.inner})
    for (int d = 0; d < part->ndim; ++d)
      for (View& v : views) v.shape[v.ndim] = part->shape[d], v.stride[v.ndim] = part->stride[d], v.ndim += 1;
  const int64_t size = item_size(m.outer.dtype);
  char* copy = scratch.take<char>(views[0].size() * size);
  views[0].data = copy;
  for (int64_t d = views[0].ndim - 1, stride = size; d >= 0; --d) views[0].stride[d] = stride, stride *= views[0].shape[d];
  collapse(views, 2);
  each_part(views, 2, [size](View* part) {
    const auto n = uint32_t(part[0].size());
    const auto kernel = size == 1   ? copy_in_order<uint8_t>
                        : size == 2 ? copy_in_order<uint16_t>
                        : size == 4 ? copy_in_order<uint32_t>
                                    : copy_in_order<uint64_t>;
    start(kernel, blocks_for(n), kThreads, 0, n, Walk<2>(part), part[0].data, part[1].data);
  });
  m = straightened(m, copy);
}

}  // namespace pb::cuda

namespace pb::kernels {

void executed_reduction(const Launch& launch, Counts& work) {
  const auto& op = static_cast<const cuda::ReductionKernel&>(*static_cast<const Reduction*>(launch.table));
  const int64_t results = launch.out().size();
  Matrix m = matrix_of(launch.in(), launch.ints[0]);
  if (op.divides) work.special = results;
  if (op.mirrors) work.adds += launch.in().size() + results;
  if (m.rows > 0 && !cuda::RowAxes::takes(m.reduced)) m = cuda::straightened(m, nullptr);
  work.add(op.counts, cuda::repeated(m));
}

const std::vector<const Reduction*>& reductions() {
  static const std::vector<const Reduction*> table = [] {
    std::vector<const Reduction*> entries;
    each_reduction(cuda::AddReduction{entries});
    return entries;
  }();
  return table;
}

}  // namespace pb::kernels
