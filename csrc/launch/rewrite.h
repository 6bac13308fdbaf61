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

// The only step but `writer` that touches the block of its output k; -1 where there is none or more, or the block is not a
// temporary.
int only_reader(const Plan& plan, int writer, int k = 0);

// Whether the operand is all of a block in its order.
bool is_whole_block(const Plan& plan, const Operand& operand);

// Makes the sum that step `reader` writes lie where the operand does that it is added to, from step s on, which writes the other
// term; false where steps between need the operand as it is, or later ones. Both are whole blocks of as many bytes.
bool sum_in_place(Plan& plan, const Operand& before, const Operand& sum, int s, int reader);

// Moves the step that reads what step s writes right behind it, where nothing is in the way.
bool follows(Plan& plan, int s, int reader);

// Moves steps so that `first` comes right before `second`, where nothing is in the way; its place then, or -1.
int bring_together(Plan& plan, int first, int second);

// Puts one launch in the place of steps [first, first + count), with these operands.
void replace(Plan& plan, int first, int count, Launch launch, const std::vector<Operand>& operands);

}  // namespace pb
