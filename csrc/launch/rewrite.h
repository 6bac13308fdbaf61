// Changing a list of launches without changing what it computes.
#pragma once
#include "launch/plan.h"

namespace pb {

// The memory from the first to behind the last element.
struct Extent {
  const char *begin, *end;
};
Extent extent_of(const View& view);

// Whether both are the same elements in the same order.
bool same_view(const Operand& a, const Operand& b);
bool is_named(const Step& step, const char* kernel);

// Whether the later step must stay after the earlier: one of them writes what the other touches.
bool depends(const Plan& plan, const Step& earlier, const Step& later);

// Whether the operand is all of a block in its order.
bool is_whole_block(const Plan& plan, const Operand& operand);

// Moves steps so that `first` comes right before `second`, where nothing is in the way; its place then, or -1.
int bring_together(Plan& plan, int first, int second);

// Puts one launch in the place of steps [first, first + count), with these operands.
void replace(Plan& plan, int first, int count, Launch launch, const std::vector<Operand>& operands);

// Who touches what, so that merging two steps takes no walk over the plan. A step is known by its place when this was made; one that
// was merged into an earlier one stays there without names, until this goes.
class Uses {
 public:
  explicit Uses(Plan& plan);
  ~Uses();

  bool merged(int s) const { return at_[s] != s; }
  // The only step but `writer` that touches the block of its output k; -1 where there is none or more, or the block is not a
  // temporary.
  int only_reader(int writer, int k = 0) const;
  // True if step `reader` could come right behind step s: nothing is in the way.
  bool may_follow(int s, int reader) const;
  // Makes the sum that step `reader` writes lie where the operand does that it is added to, from step s on, which writes the other
  // term; false where steps between need the operand as it is, or later ones. Both are whole blocks of as many bytes.
  bool sum_in_place(const Operand& before, const Operand& sum, int s, int reader);
  // Puts one launch in the place of step s, with these operands, which does what `reader` did, too.
  void merge(int s, int reader, Launch launch, const std::vector<Operand>& operands);

 private:
  struct Outside {
    int step;
    const Operand operand;
  };
  bool between(const std::vector<int>& steps, int s, int reader) const;
  bool between(const std::vector<Outside>& found, const Operand& operand, int s, int reader) const;

  Plan& plan_;
  std::vector<int> at_;                              // where each step is now
  std::vector<std::vector<int>> touched_, written_;  // each block, by which steps, in their order
  std::vector<Outside> outside_, outside_written_;   // of operands that have no block
};

}  // namespace pb
