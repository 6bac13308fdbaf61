// The work that the kernels over rows do (families/executed.h): softmax and its relatives, cross entropy, and the norms.
#include <algorithm>

#include "cuda/shares.h"
#include "families/executed.h"
#include "families/rows.h"

namespace pb::cuda {
namespace {

using kernels::Walks;

int64_t whole(int64_t n, int64_t of) { return (n + of - 1) / of * of; }

// Returns the walks of `teams` teams that hold rows in registers. All threads take part in the reductions: each combines the
// elements that it holds, and those of the lanes and of the warps.
Walks walks_in_registers(int64_t teams, const RowPartition& partition) {
  const int64_t of_warps = partition.in_block() ? 4 : 0;  // of the warps of the largest block
  const int64_t combines = kShare - 1 + partition.shift + of_warps;
  const int64_t threads = teams * partition.team;
  return {threads, teams * partition.n, threads * combines, teams};
}

Walks walks_of_streamed(int64_t rows, int64_t n) {
  const int64_t blocks = kernels::order_blocks(n), elements = elements_per_warp(n), warps = (n + elements - 1) / elements;
  const int64_t in_warps = blocks * (kShare - 1 + 5) + (blocks - warps);
  return {rows * kMaxTeam, rows * n, rows * (in_warps * kWarp + kMaxTeam * 4), rows};
}

// Returns the walks of start_rows. Threads of a block that have no row walk the first one.
Walks walks_of_rows(const View& x) {
  const int64_t rows = kernels::row_count(x), n = kernels::row_length(x);
  if (!is_held(x)) return walks_of_streamed(rows, n);
  const RowPartition partition(n);
  return walks_in_registers(int64_t(partition.blocks(rows)) * partition.teams, partition);
}

// Returns the number of rows that teams walk in a norm's pullback. It includes those of teams without a row, which stay in step with
// the first team of their block.
int64_t rows_walked(const RowPartition& partition, int64_t rows) {
  using kernels::kOrderChain;
  const int64_t beside = partition.teams, together = beside * kOrderChain;
  return rows / together * together + std::min(kOrderChain, rows % together) * beside;
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

// In rows too long for registers most formulas compute exponentials or differences again, so this is a lower bound there.
Walks walks_of(const Launch&, const View& x) { return cuda::walks_of_rows(x); }

Walks walks_of_norm(const Launch& launch) {
  Walks walks = cuda::walks_of_rows(launch.in());
  walks.affine = true;
  return walks;
}

// Rows too long for registers are walked twice, by different formulas; for them the work of a single walk is reported as a lower
// bound.
Walks walks_of_norm_pullback(const Launch& launch) {
  const int64_t n = row_length(launch.in()), rows = row_count(launch.in());
  if (!cuda::is_held(launch.in())) return {rows, rows * n, rows * (n - 1), 0};
  const cuda::RowPartition partition(n);
  Walks walks = cuda::walks_in_registers(cuda::rows_walked(partition, rows), partition);
  walks.affine = true;
  return walks;
}

// Adds the additions of fold_chains and fold_blocks, and subtracts those that the walks count for teams without a row, which add
// nothing to the sums.
void executed_sums(const Launch& launch, int sums, Counts& work) {
  const int64_t n = row_length(launch.in()), rows = row_count(launch.in()), width = sums * n;
  if (!cuda::is_held(launch.in())) return;
  const int64_t blocks = std::max<int64_t>(1, order_blocks(order_chains(rows)));
  work.adds += blocks * cuda::whole(width, cuda::kWarp) * cuda::kWarp * (cuda::kShare - 1 + 5);
  if (blocks > 1) work.adds += width * cuda::combinations_of_results(blocks);
  work.adds -= (cuda::rows_walked(cuda::RowPartition(n), rows) - rows) * width;
}

}  // namespace pb::kernels
