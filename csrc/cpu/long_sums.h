// Float64 sums of the targets of a scatter that receive many float32 updates.
#pragma once
#include <algorithm>
#include <cstring>

#include "cpu/scratch.h"
#include "families/scatter.h"

namespace pb::cpu {

using kernels::kSumBlock;

// The sums of the blocks of kSumBlock updates that targets have completed. A target is a row of `width` elements, which hold the sum
// of the block that has begun.
class LongSums {
 public:
  // Takes memory for this many targets and updates, of at most `width` elements.
  LongSums(int64_t targets, int64_t updates, int64_t width) {
    const int64_t slots = std::min(targets, updates / kSumBlock);
    count_ = scratch_.take<uint8_t>(targets), slot_ = scratch_.take<int32_t>(targets);
    sums_ = scratch_.take<double>(slots, width), rows_ = scratch_.take<float*>(slots);
  }

  // Starts with new targets of `width` elements, numbered from `first` on.
  void begin(int64_t first, int64_t targets, int64_t width) {
    first_ = first, width_ = width, used_ = 0;
    std::memset(count_, 0, size_t(targets));
  }

  // Per target, the updates of the block that has begun, plus kHasSums if there are blocks before it.
  uint8_t* counts() const { return count_ - first_; }
  static bool block_ends(uint8_t count) { return (count & ~kHasSums) == kSumBlock; }

  // Moves a block of the target, whose elements are at y, to its sums, and begins the next block. Returns the target's new count.
  [[gnu::noinline]] uint8_t next_block(int64_t target, float* y) {
    const int64_t at = target - first_;
    if (count_[at] & kHasSums) {
      double* __restrict sums = sums_ + slot_[at] * width_;
      for (int64_t i = 0; i < width_; ++i) sums[i] += double(y[i]);
    } else {
      double* __restrict sums = sums_ + used_ * width_;
      for (int64_t i = 0; i < width_; ++i) sums[i] = double(y[i]);
      slot_[at] = used_, rows_[used_++] = y;
    }
    std::memset(y, 0, size_t(width_) * sizeof(float));
    return kHasSums;
  }

  // Adds the last blocks, and rounds the sums to the targets.
  void end() {
    for (int64_t slot = 0; slot < used_; ++slot)
      for (int64_t i = 0; i < width_; ++i) rows_[slot][i] = float(sums_[slot * width_ + i] + double(rows_[slot][i]));
  }

 private:
  static constexpr uint8_t kHasSums = 128;
  static_assert(kSumBlock < kHasSums);

  Scratch scratch_;
  int64_t first_ = 0, width_ = 0;
  uint8_t* count_;
  int32_t* slot_;  // per target with sums, their position
  double* sums_;   // [slot, width]
  float** rows_;   // per slot, the target's elements
  int32_t used_ = 0;
};

}  // namespace pb::cpu
