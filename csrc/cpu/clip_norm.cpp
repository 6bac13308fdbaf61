// Computes the joint norm of each member's gradients.
#include <algorithm>
#include <cmath>

#include "cpu/pieces.h"
#include "cpu/pool.h"
#include "cpu/reduce.h"
#include "cpu/scratch.h"
#include "cpu/squares.h"
#include "cpu/stream.h"
#include "families/update.h"

namespace pb::kernels {

using namespace cpu;

// For each member one addition less than there are squares, and 1e-6 for each of its sets.
void executed_clip_norm(const Launch& launch, Counts& work) {
  const int64_t members = launch.ints[0];
  const Pieces squares{&launch.in(), launch.inputs, members, 1};
  work.adds = members * (std::max<int64_t>(0, squares.of_member() - 1) + launch.inputs);
}

// Sums the squares of each gradient, and then over the gradients, in the order of families/order.h. A block of the Reader holds
// four of that order, so blocks can be summed independently.
void clip_norm(const Launch& launch) {
  static_assert(kBlock % kOrderBlock == 0 && ((kBlock / kOrderBlock) & (kBlock / kOrderBlock - 1)) == 0);
  const int64_t members = launch.ints[0];
  const View* gradients = &launch.in();
  const Pieces blocks{gradients, launch.inputs, members, kBlock};
  Scratch scratch;
  double* const sums = scratch.take<double>(std::max<int64_t>(1, blocks.count()));
  parallel_for(blocks.count(), 2 * kUpdateGrain / kBlock, [&](int64_t begin, int64_t end) {
    double* sum = sums + begin;
    blocks.each(begin, end, [&](int64_t t, int64_t member, int64_t first, int64_t last) {
      const MemberRange range(gradients[t], members, member);
      const Compute compute = compute_type(gradients[t].dtype);
      alignas(64) char buffer[kBlockBytes];
      Reader reader(gradients[t], compute);
      for (int64_t i = first * kBlock; i < std::min(range.size, last * kBlock); i += kBlock) {
        const int64_t n = std::min(kBlock, range.size - i);
        const void* x = reader.block(range.begin + i, n, buffer);
        *sum++ = sum_of_squares(compute, n, x);
      }
    });
  });
  double* from = sums;
  for (int64_t member = 0; member < members; ++member) {
    double* const of_member = from;
    int64_t given = 0;
    for (int64_t t = 0; t < launch.inputs; ++t) {
      if (blocks.of(t) == 0) continue;
      reduce_pairs<sum_reduce>(blocks.of(t), 1, from);
      of_member[given++] = *from;
      from += blocks.of(t);
    }
    if (given > 0) reduce_pairs<sum_reduce>(given, 1, of_member);
    const double norm = given > 0 ? m::sqrt(*of_member) : 0;
    ScalerNumber* const scaler = scaler_of(launch);
    const Setting factor = scaler ? unscaling(scaler[kLossScale], norm) : 1;
    if (scaler) count_check(scaler, factor);
    for (int64_t t = 0; t < launch.inputs; ++t) {
      Setting* const set = launch.out().as<Setting>() + (t * members + member) * kSetSize;
      if (scaler) set[kGradientScale] *= factor;
      clip_to_norm(set, norm);
    }
  }
}

}  // namespace pb::kernels
