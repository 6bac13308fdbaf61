// The table of reductions, the division of their work among threads, and the copying of operands whose rows span several axes.
#include "cuda/reduce.cuh"

#include <algorithm>

#include "cuda/copy.cuh"
#include "families/reduce.h"

namespace pb::cuda {
namespace {

constexpr int64_t kManyBlocks = 2048;  // as many blocks of threads keep any device busy

// A reduction with its kernels: the lean one, and the generic ones by compute type. Null for types that it is not defined for.
struct ReductionKernel : kernels::Reduction {
  void (*plain)(Reducing);
  void (*packed)(Reducing);
  void (*kernels[kComputes])(Reducing);
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the logarithm of the smallest power of two that is at least min(n, most).
int log_up_to(int64_t n, int64_t most) {
  int log = 0;
  while (int64_t{1} << log < std::min(n, most)) ++log;
  return log;
}

View axis_of(const View& of, int64_t length, int64_t stride) {
  View v = flat_view(of.data, of.dtype, length);
  v.stride[0] = stride;
  return v;
}

// Copies the operand of m if its rows span more axes than the kernel takes.
void straighten(kernels::Matrix& m, Scratch& scratch) {
  if (m.rows == 0 || RowAxes::takes(m.reduced)) return;
  View all = m.outer;
  for (const View& part : {m.reduced, m.inner})
    for (int d = 0; d < part.ndim; ++d) all.shape[all.ndim] = part.shape[d], all.stride[all.ndim++] = part.stride[d];
  const View copy = contiguous_as(all.dtype, all, scratch);
  const int64_t size = item_size(copy.dtype);
  m.inner = axis_of(copy, m.width, size);
  m.reduced = axis_of(copy, m.rows, size * m.width);
  m.outer = axis_of(copy, m.cells, size * m.width * m.rows);
}

// A reduction's work, divided among threads. The results do not depend on the division.
struct DividedReduction {
  Reducing f;
  unsigned threads, blocks;
};
DividedReduction divide(const kernels::Matrix& m, const View& out, bool divides) {
  Reducing f{m.outer.data, m.outer.dtype, Axes(m.outer), RowAxes(m.reduced)};
  f.column_stride = m.inner.ndim ? m.inner.stride[0] : 0;
  f.cells = m.cells, f.rows = m.rows, f.width = m.width, f.blocks = kernels::order_blocks(m.rows);
  f.out = out.data, f.out_dtype = out.dtype, f.out_size = item_size(out.dtype), f.divides = divides;

  f.log_across = log_up_to(f.width, kMostAcross);
  f.log_down = log_up_to(ceil_div(f.rows, kRowsOfThread), kMostDown);
  f.log_teams = log_up_to(f.blocks, kReducers >> (f.log_across + f.log_down));
  const int log_cell = f.log_across + f.log_down + f.log_teams;
  const int64_t threads = std::max<int64_t>(kWarp, int64_t{1} << log_up_to(f.cells << log_cell, kReducers));
  const int64_t tiles = ceil_div(f.width, int64_t{1} << f.log_across), units = ceil_div(f.cells << log_cell, threads) * tiles;
  // There are as many runs as the device needs to be busy, or as the last block of threads can combine.
  const int64_t most =
      std::min<int64_t>((kReducers >> f.log_across) * kRunsOfThread, std::max<int64_t>(1, kManyBlocks / units));
  f.log_depth = 0;
  while (f.blocks > most << (f.log_teams + f.log_depth)) ++f.log_depth;
  const int64_t runs = std::max<int64_t>(1, ceil_div(f.blocks, int64_t{1} << (f.log_teams + f.log_depth)));
  if (units * runs > kMaxBlocks) throw Failure("more results than a grid has threads");
  f.tiles = Divider(uint32_t(tiles)), f.runs = Divider(uint32_t(runs));
  return {f, unsigned(threads), unsigned(units * runs)};
}

void run_reduction(const Launch& launch) {
  const auto& op = static_cast<const ReductionKernel&>(*static_cast<const kernels::Reduction*>(launch.table));
  Scratch scratch;
  const bool converts = op.predicate && launch.in().dtype != DType::b8;
  const View x = converts ? contiguous_as(DType::b8, launch.in(), scratch) : launch.in();
  kernels::Matrix m = kernels::matrix_of(x, launch.ints[0]);
  if (m.cells * m.width == 0) return;
  straighten(m, scratch);
  DividedReduction divided = divide(m, launch.out(), op.divides && m.rows != 1);
  const Compute compute = kernels::read_as(op, x.dtype);
  const int64_t runs = divided.f.runs.divisor;
  if (runs > 1) {
    divided.f.partial = scratch.take<char>(m.cells * runs * m.width * compute_size(compute));
    divided.f.tickets = tickets();
  }
  const bool plain = op.plain && PlainTerms::takes(m.outer, m.reduced),
             packed = plain && PackedTerms::takes(m.outer, m.reduced, m.width);
  start(packed  ? op.packed
        : plain ? op.plain
                : op.kernels[int(compute)],
        dim3(divided.blocks), dim3(divided.threads), 0, divided.f);
}

// Adds an entry to the table. The entry lives as long as the program.
struct AddReduction {
  std::vector<const kernels::Reduction*>& table;

  template <class R> void operator()(R entry, const char* name) const {
    static const ReductionKernel op = [&] {
      ReductionKernel kernel{kernels::reduction_of(entry, name, run_reduction), nullptr, nullptr, {}};
      if constexpr (R::takes(Compute::f32))
        kernel.plain = reduce<typename R::Functions, PlainTerms>, kernel.packed = reduce<typename R::Functions, PackedTerms>;
      set<R, float>(kernel), set<R, double>(kernel), set<R, int64_t>(kernel), set<R, uint64_t>(kernel), set<R, bool>(kernel);
      return kernel;
    }();
    table.push_back(&op);
  }
  template <class R, class C> static void set(ReductionKernel& op) {
    // Sums and products modulo 2^64 are the same for int64 and uint64.
    using Own = std::conditional_t<R::kAdds && std::is_same_v<C, uint64_t>, int64_t, C>;
    if constexpr (R::takes(compute_of<C>)) op.kernels[int(compute_of<C>)] = reduce<typename R::Functions, StridedTerms<Own>>;
  }
};

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

const std::vector<const Reduction*>& reductions() {
  static const std::vector<const Reduction*> table = [] {
    std::vector<const Reduction*> entries;
    each_reduction(cuda::AddReduction{entries});
    return entries;
  }();
  return table;
}

}  // namespace pb::kernels
