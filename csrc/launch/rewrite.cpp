// Dependencies between steps, and changes of their order: see rewrite.h.
#include "launch/rewrite.h"

#include <algorithm>
#include <cstring>

namespace pb {
namespace {

bool overlap(const Operand& a, const Operand& b) {
  if (a.place.block != b.place.block) return false;
  if (a.place.block >= 0) return true;
  if (a.view.number || b.view.number || !a.view.data || !b.view.data) return false;
  const Extent x = extent_of(a.view), y = extent_of(b.view);
  return x.begin < y.end && y.begin < x.end;
}

}  // namespace

Extent extent_of(const View& view) {
  Extent extent{view.data, view.data};
  if (view.size() == 0) return extent;
  for (int d = 0; d < view.ndim; ++d) {
    const int64_t reach = (view.shape[d] - 1) * view.stride[d];
    (reach < 0 ? extent.begin : extent.end) += reach;
  }
  extent.end += item_size(view.dtype);
  return extent;
}

bool depends(const Plan& plan, const Step& earlier, const Step& later) {
  const int a = earlier.launch.outputs + earlier.launch.inputs, b = later.launch.outputs + later.launch.inputs;
  for (int i = 0; i < a; ++i)
    for (int j = 0; j < b; ++j)
      if ((i < earlier.launch.outputs || j < later.launch.outputs) && overlap(plan.operand(earlier, i), plan.operand(later, j)))
        return true;
  return false;
}

int only_reader(const Plan& plan, int writer, int k) {
  const int block = plan.out(plan.steps[writer], k).place.block;
  if (block < 0 || plan.blocks[block].home != Home::arena) return -1;
  int found = -1;
  for (int s = 0; s < int(plan.steps.size()); ++s) {
    if (s == writer) continue;
    const Step& step = plan.steps[s];
    for (int i = 0; i < step.launch.outputs + step.launch.inputs; ++i) {
      if (plan.operand(step, i).place.block != block) continue;
      if ((found >= 0 && found != s) || s < writer || i < step.launch.outputs) return -1;
      found = s;
    }
  }
  return found;
}

bool is_whole_block(const Plan& plan, const Operand& operand) {
  const auto& [view, place] = operand;
  return place.block >= 0 && place.offset == 0 && view.contiguous() && view.bytes() == plan.blocks[place.block].bytes;
}

bool sum_in_place(Plan& plan, const Operand& before, const Operand& sum, int s, int reader) {
  const int from = before.place.block, to = sum.place.block;
  if (from != to && plan.blocks[from].home != Home::arena) return false;
  const int end = from == to ? reader : int(plan.steps.size());
  for (int t = s; t < end; ++t) {
    const Step& step = plan.steps[t];
    for (int k = 0; t != reader && k < step.launch.outputs + step.launch.inputs; ++k)
      if (plan.operand(step, k).place.block == from) return false;
  }
  for (Operand& operand : plan.operands)
    if (operand.place.block == from) operand.place.block = to;
  return true;
}

bool same_view(const Operand& a, const Operand& b) {
  const View &v = a.view, &w = b.view;
  bool same = a.place.block == b.place.block && a.place.offset == b.place.offset && v.dtype == w.dtype && v.ndim == w.ndim;
  same = same && (a.place.block >= 0 || v.data == w.data);
  for (int d = 0; same && d < v.ndim; ++d) same = v.shape[d] == w.shape[d] && (v.stride[d] == w.stride[d] || v.shape[d] == 1);
  return same;
}

bool is_named(const Step& step, const char* name) { return !std::strcmp(step.launch.kernel->name, name); }

bool follows(Plan& plan, int s, int reader) {
  if (reader < 0) return false;
  for (int k = s + 1; k < reader; ++k)
    if (depends(plan, plan.steps[k], plan.steps[reader])) return false;
  std::rotate(plan.steps.begin() + s + 1, plan.steps.begin() + reader, plan.steps.begin() + reader + 1);
  return true;
}

int bring_together(Plan& plan, int first, int second) {
  std::vector<Step> before, moved;  // what stays before the pair, and what comes after it
  for (int s = first + 1; s < second; ++s) {
    const Step& step = plan.steps[s];
    bool after = depends(plan, plan.steps[first], step);
    for (const Step& other : moved) after = after || depends(plan, other, step);
    (after ? moved : before).push_back(step);
  }
  for (const Step& other : moved)
    if (depends(plan, other, plan.steps[second])) return -1;
  if (depends(plan, plan.steps[first], plan.steps[second])) return -1;
  std::vector<Step> order = std::move(before);
  const int place = first + int(order.size());
  order.push_back(plan.steps[first]);
  order.push_back(plan.steps[second]);
  order.insert(order.end(), moved.begin(), moved.end());
  std::move(order.begin(), order.end(), plan.steps.begin() + first);
  return place;
}

void replace(Plan& plan, int first, int count, Launch launch, const std::vector<Operand>& operands) {
  Step step{launch, plan.operands.size(), plan.steps[first].charge, plan.steps[first].number, {}};
  for (int s = first; s < first + count; ++s)
    step.names.insert(step.names.end(), plan.steps[s].names.begin(), plan.steps[s].names.end());
  plan.operands.insert(plan.operands.end(), operands.begin(), operands.end());
  plan.steps[first] = std::move(step);
  plan.steps.erase(plan.steps.begin() + first + 1, plan.steps.begin() + first + count);
}

}  // namespace pb
