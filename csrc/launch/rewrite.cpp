// The implementation of rewrite.h: dependencies between steps, and changes of their order.
#include "launch/rewrite.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace pb {

bool overlap(const Operand& a, const Operand& b) {
  if (a.location.block != b.location.block) return false;
  if (a.location.block >= 0) return true;
  if (a.view.number || b.view.number || !a.view.data || !b.view.data) return false;
  const Extent x = extent_of(a.view), y = extent_of(b.view);
  return x.begin < y.end && y.begin < x.end;
}

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

bool is_whole_block(const Plan& plan, const Operand& operand) {
  const auto& [view, location] = operand;
  return location.block >= 0 && location.offset == 0 && view.contiguous() && view.bytes() == plan.blocks[location.block].bytes;
}

bool same_view(const Operand& a, const Operand& b) {
  const View &v = a.view, &w = b.view;
  bool same =
      a.location.block == b.location.block && a.location.offset == b.location.offset && v.dtype == w.dtype && v.ndim == w.ndim;
  same = same && (a.location.block >= 0 || v.data == w.data);
  for (int d = 0; same && d < v.ndim; ++d) same = v.shape[d] == w.shape[d] && (v.stride[d] == w.stride[d] || v.shape[d] == 1);
  return same;
}

bool is_named(const Step& step, const char* name) { return !std::strcmp(step.launch.kernel->name, name); }

int bring_together(Plan& plan, int first, int second) {
  std::vector<Step> before, moved;  // the steps that stay before the pair, and the steps that must follow it
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
  Step step{launch, plan.operands.size(), plan.steps[first].attribution, plan.steps[first].number, {}};
  for (int s = first; s < first + count; ++s)
    step.names.insert(step.names.end(), plan.steps[s].names.begin(), plan.steps[s].names.end());
  plan.operands.insert(plan.operands.end(), operands.begin(), operands.end());
  plan.steps[first] = std::move(step);
  plan.steps.erase(plan.steps.begin() + first + 1, plan.steps.begin() + first + count);
}

Uses::Uses(Plan& plan) : plan_(plan), at_(plan.steps.size()), touched_(plan.blocks.size()), written_(plan.blocks.size()) {
  for (int s = 0; s < int(plan.steps.size()); ++s) {
    at_[s] = s;
    each_operand(plan, plan.steps[s], [&](const Operand& operand, bool written) {
      const int block = operand.location.block;
      if (block < 0) {
        outside_.push_back({s, operand});
        if (written) outside_written_.push_back({s, operand});
        return;
      }
      if (touched_[block].empty() || touched_[block].back() != s) touched_[block].push_back(s);
      if (written && (written_[block].empty() || written_[block].back() != s)) written_[block].push_back(s);
    });
  }
}

Uses::~Uses() {
  std::vector<Step>& steps = plan_.steps;
  size_t kept = 0;
  for (size_t s = 0; s < steps.size(); ++s) {
    if (merged(int(s))) continue;
    if (kept != s) steps[kept] = std::move(steps[s]);
    ++kept;
  }
  steps.erase(steps.begin() + kept, steps.end());
}

int Uses::only_reader(int writer, int k) const {
  const int block = plan_.out(plan_.steps[writer], k).location.block;
  if (block < 0 || plan_.blocks[block].kind != BlockKind::arena) return -1;
  int found = -1;
  for (const int touching : touched_[block]) {
    const int s = at_[touching];
    if (s == writer) continue;
    if ((found >= 0 && found != s) || s < writer) return -1;
    found = s;
  }
  for (int i = 0; found >= 0 && i < plan_.steps[found].launch.outputs; ++i)
    if (plan_.out(plan_.steps[found], i).location.block == block) return -1;
  return found;
}

bool Uses::between(const std::vector<int>& steps, int s, int reader) const {
  for (auto t = std::upper_bound(steps.begin(), steps.end(), s); t != steps.end() && *t < reader; ++t)
    if (at_[*t] > s && at_[*t] != reader) return true;
  return false;
}

bool Uses::between(const std::vector<Outside>& found, const Operand& operand, int s, int reader) const {
  const auto before = [](int step, const Outside& one) { return step < one.step; };
  for (auto t = std::upper_bound(found.begin(), found.end(), s, before); t != found.end() && t->step < reader; ++t)
    if (at_[t->step] > s && at_[t->step] != reader && overlap(t->operand, operand)) return true;
  return false;
}

bool Uses::may_follow(int s, int reader) const {
  bool may = true;
  each_operand(plan_, plan_.steps[reader], [&](const Operand& operand, bool written) {
    const int block = operand.location.block;
    may = may && !(block >= 0 ? between((written ? touched_ : written_)[block], s, reader)
                              : between(written ? outside_ : outside_written_, operand, s, reader));
  });
  return may;
}

bool Uses::sum_in_place(const Operand& before, const Operand& sum, int s, int reader) {
  const int from = before.location.block, to = sum.location.block;
  if (from != to && plan_.blocks[from].kind != BlockKind::arena) return false;
  for (const int touching : touched_[from]) {
    const int t = at_[touching];
    if (t >= s && t != reader && (from != to || t < reader)) return false;
  }
  if (from == to) return true;
  for (const int touching : touched_[from])
    each_operand(plan_, plan_.steps[at_[touching]], [&](Operand& operand, bool) {
      if (operand.location.block == from) operand.location.block = to;
    });
  for (auto* lists : {&touched_, &written_}) {
    std::vector<int> both;
    std::set_union((*lists)[from].begin(), (*lists)[from].end(), (*lists)[to].begin(), (*lists)[to].end(),
                   std::back_inserter(both));
    (*lists)[to] = std::move(both);
    (*lists)[from].clear();
  }
  return true;
}

void Uses::merge(int s, int reader, Launch launch, const std::vector<Operand>& operands) {
  Step &first = plan_.steps[s], &second = plan_.steps[reader];
  Step step{launch, plan_.operands.size(), first.attribution, first.number, std::move(first.names)};
  step.names.insert(step.names.end(), second.names.begin(), second.names.end());
  plan_.operands.insert(plan_.operands.end(), operands.begin(), operands.end());
  first = std::move(step);
  at_[reader] = s;
}

}  // namespace pb
