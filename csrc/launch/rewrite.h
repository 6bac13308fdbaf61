// Operations that change a list of launches without changing its results.
#pragma once
#include "launch/plan.h"

namespace pb {

// Calls f(operand, written) for each operand of a step that has memory, which numbers passed by value and operands that are not
// given have not. `written` is true for the outputs.
template <class AnyPlan, class F> void each_operand(AnyPlan& plan, const Step& step, F&& f) {
  for (int k = 0; k < step.launch.outputs + step.launch.inputs; ++k) {
    auto& operand = plan.operands[step.operand + k];
    if (!operand.view.number && operand.view.data) f(operand, k < step.launch.outputs);
  }
}

// A range of memory: `end` is one byte past the last element.
struct Extent {
  const char *begin, *end;
};
Extent extent_of(const View& view);  // the range that holds all elements of the view

// True if both operands may share memory.
bool overlap(const Operand& a, const Operand& b);
// True if both operands view the same elements in the same order.
bool same_view(const Operand& a, const Operand& b);
bool is_named(const Step& step, const char* kernel);

// True if the later step must stay after the earlier one, because one of them writes memory that the other one touches.
bool depends(const Plan& plan, const Step& earlier, const Step& later);

// True if the operand covers its whole block, contiguously.
bool is_whole_block(const Plan& plan, const Operand& operand);

// Moves steps so that `first` comes right before `second`, and returns its new index. Returns -1 and changes nothing if
// dependencies forbid the move.
int bring_together(Plan& plan, int first, int second);

// Replaces steps [first, first + count) by one launch with these operands.
void replace(Plan& plan, int first, int count, Launch launch, const std::vector<Operand>& operands);

// An index of the steps that touch each block, so that two steps can be merged without a scan of the plan. Steps are identified by
// their index in the plan at construction. A step that was merged into an earlier one stays in the plan until the destructor
// removes it.
class Uses {
 public:
  explicit Uses(Plan& plan);
  ~Uses();

  bool merged(int s) const { return at_[s] != s; }
  // Returns the step that reads output k of `writer`, if no third step touches the output's block. Returns -1 if there is no such
  // step, if it also writes to the block, or if the block is not a temporary.
  int only_reader(int writer, int k = 0) const;
  // True if step `reader` could come right after step s, because it does not depend on the steps between them.
  bool may_follow(int s, int reader) const;
  // Lets `before`, one term of the sum that step `reader` computes, share memory with the sum, so that step s can accumulate the
  // other term into it. Returns false if `before` must keep its memory, or if another step from s on needs its value. Both must be
  // whole blocks of equal size.
  bool sum_in_place(const Operand& before, const Operand& sum, int s, int reader);
  // Replaces step s by a launch with these operands that also does the work of step `reader`.
  void merge(int s, int reader, Launch launch, const std::vector<Operand>& operands);

 private:
  struct Outside {
    int step;
    const Operand operand;
  };
  bool between(const std::vector<int>& steps, int s, int reader) const;
  bool between(const std::vector<Outside>& found, const Operand& operand, int s, int reader) const;

  Plan& plan_;
  std::vector<int> at_;                              // for each step, itself or the step that it was merged into
  std::vector<std::vector<int>> touched_, written_;  // for each block, the steps that touch it and that write to it, ascending
  std::vector<Outside> outside_, outside_written_;   // the operands that belong to no block, by step
};

}  // namespace pb
