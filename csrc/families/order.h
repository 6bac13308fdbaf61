// The order in which the terms of a sum are combined. It depends on the number of terms alone: not on the SIMD level, the number of
// threads, the device, the layout, or the number of sums that are computed at once. So a sum has the same bits everywhere. The rules
// hold for every reduction (products, extremes, ...); docs/reproducibility.md gives them with examples.
//
//  1. The terms are cut into blocks of kOrderBlock consecutive ones. The last block may be shorter.
//  2. Within a block of a reduction, the upper half is combined with the lower half: with h the largest power of two below the
//     number of terms, t[j] becomes t[j] + t[j + h], for each j for which both exist. This repeats until one is left.
//     Within a block of a sum of products, each product is added to the sum of those before it by a fused multiply-add, beginning
//     with 0, in order.
//  3. The results of the blocks are combined in pairs of neighbours: 0 with 1, 2 with 3, .... This repeats until one is left. A last
//     one without a neighbour is kept as it is.
//
// A sum over rows of what each row contributes to the gradient of a vector that all rows share (a norm's weight) has chains of
// kOrderChain consecutive rows: each contribution is added to the sum of those before it, beginning with 0. The sums of the chains
// are then the terms of rules 1 to 3.
//
// A running reduction (a cumulative sum) has chains of kOrderRun consecutive elements, in which each element is combined with the
// result of those before it. The totals of the chains run in the same way, and the running total of the chains before an element's
// own is combined with its result in its own chain.
//
// Rule 2 lets vector lanes, and threads of a GPU, work on any power-of-two share of a block. By rule 3, any run of 2^p blocks that
// begins at a multiple of 2^p can be combined independently, so threads and slices are cut at such runs.
#pragma once
#include <cstdint>

#include "math/bits.h"

namespace pb::kernels {

// 256 terms fill sixteen vectors of the widest SIMD level, or eight elements for each thread of a warp. Longer chains of products
// would have larger rounding errors (an error grows with the square root of a chain's length), and a GPU could not cut short
// contractions into slices; shorter ones would cost more additions of blocks than the 1 % that these take.
constexpr int64_t kOrderBlock = 256;

PB_HD constexpr int64_t order_blocks(int64_t terms) { return (terms + kOrderBlock - 1) / kOrderBlock; }

// Eight rows make the sums of the chains an eighth of the rows' own size.
constexpr int64_t kOrderChain = 8;

constexpr int64_t order_chains(int64_t rows) { return (rows + kOrderChain - 1) / kOrderChain; }

// As many as a warp has lanes: the lanes run 32 chains at once, and shared memory turns the rows that they read into chains.
constexpr int64_t kOrderRun = 32;

// The largest power of two below n, for n > 1.
constexpr int64_t upper_half(int64_t n) {
  int64_t half = 1;
  while (2 * half < n) half *= 2;
  return half;
}

}  // namespace pb::kernels
