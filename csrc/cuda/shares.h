// How the threads of a GPU share the terms of a sum, and the elements of a row. Without device code.
#pragma once
#include "cuda/block.h"
#include "families/order.h"
#include "launch/shape.h"

namespace pb::cuda {

using kernels::kOrderBlock;

constexpr int kShare = int(kOrderBlock / kWarp);  // terms of a block per lane

// Returns the combinations that fold_results() does in all lanes.
inline int64_t combinations_of_results(int64_t count) {
  const int64_t rounds = (count + kWarp - 1) / kWarp;
  return count == 0 ? 0 : int64_t{kWarp} * (5 * rounds + rounds - 1);
}

constexpr int kMaxTeam = 512;  // threads that share a row
constexpr int kMaxWarps = kMaxTeam / int(kWarp);

// The threads that hold a row of n elements in registers: as many lanes of a warp as it takes, or a block with a warp for each block
// of elements.
struct RowPartition {
  int n;
  unsigned team = 1, teams = 1;  // threads of a team, and teams of a block of threads
  unsigned shift = 0;            // 2^shift lanes share a block of elements

  explicit RowPartition(int64_t n) : n(int(n)) {
    while (shift < 5 && (unsigned(kShare) << shift) < n) ++shift;
    team = in_block() ? unsigned((n + kOrderBlock - 1) / kOrderBlock * kWarp) : 1u << shift;
    if (!in_block()) teams = kThreads >> shift;
  }
  PB_HD bool in_block() const { return n > kOrderBlock; }
  unsigned threads() const { return team * teams; }
  unsigned blocks(int64_t rows) const { return unsigned((rows + teams - 1) / teams); }
};

// The number of neighbouring elements that each warp takes of a row of n elements: a power of two of blocks, so that warps can
// combine the results of their blocks before these meet those of other warps.
PB_HD int64_t elements_per_warp(int64_t n) {
  int64_t elements = kOrderBlock;
  while (elements * kMaxWarps < n) elements *= 2;
  return elements;
}

// The longest rows that are held in registers. A block has fewer threads for float64, whose elements take two registers each.
template <class T> constexpr int kMostThreads = sizeof(T) == 8 ? kMaxTeam / 2 : kMaxTeam;
template <class T> constexpr int64_t kLongestHeld = kShare * kMostThreads<T>;

inline bool is_held(const View& x) {
  return x.shape[x.ndim - 1] <= (x.dtype == DType::f64 ? kLongestHeld<double> : kLongestHeld<float>);
}

}  // namespace pb::cuda
