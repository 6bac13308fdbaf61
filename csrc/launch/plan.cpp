// Prepares a recorded list of launches for its replays.
#include "launch/plan.h"

#include <algorithm>

namespace pb {
namespace {

// True if the operand's elements lie contiguously, in order, from the start of its block.
bool in_order(const Operand& operand) { return operand.location.offset == 0 && operand.view.contiguous(); }

// Calls f(operand, written) for each operand of a step; `written` is true for its outputs.
template <class F> void each_operand(const Plan& plan, const Step& step, F&& f) {
  for (int k = 0; k < step.launch.outputs + step.launch.inputs; ++k) f(plan.operand(step, k), k < step.launch.outputs);
}

}  // namespace

void Plan::finish(Fusion fusion, int64_t align) {
  if (fusion != Fusion::none) drop_dead();
  if (fusion >= Fusion::exact) fuse_launches(*this, fusion);
  make_groups(fusion >= Fusion::exact);
  find_lifetimes();
  keep_locals();
  lay_out(align);
  make_views();
}

void Plan::move(int block, char* data) {
  for (const size_t k : operands_of[block]) views[k].data = data + operands[k].location.offset;
}

void Plan::move_given(const StridedAddress* where, int64_t pass) {
  for (size_t k = 0; k < given.size(); ++k) move(given[k], where[k].data + pass * where[k].stride);
}

// Builds the views that the launches point to. From here on, neither `views` nor `numbers` may be reallocated.
void Plan::make_views() {
  views.clear();
  operands_of.assign(blocks.size(), {});
  for (size_t k = 0; k < operands.size(); ++k) {
    const auto& [view, location] = operands[k];
    views.push_back(view);
    if (view.number) views.back().data = reinterpret_cast<char*>(&numbers[location.offset]);
    else if (location.block >= 0) operands_of[location.block].push_back(k);
  }
  for (Step& step : steps) step.launch.operands = views.data() + step.operand;
}

// A launch is needed if it writes to a result, to memory outside the plan, or to a block that a later needed launch uses. Its
// outputs then count as used too, because some launches update memory in place.
void Plan::drop_dead() {
  std::vector<bool> needed(blocks.size());
  for (size_t b = 0; b < blocks.size(); ++b) needed[b] = blocks[b].kind == BlockKind::result;
  std::vector<Step> kept;
  for (size_t s = steps.size(); s-- > 0;) {
    bool alive = false;
    each_operand(*this, steps[s], [&](const Operand& operand, bool written) {
      const int block = operand.location.block;
      alive |= written && (block < 0 ? operand.view.data != nullptr : bool(needed[block]));
    });
    if (!alive) continue;
    each_operand(*this, steps[s], [&](const Operand& operand, bool) {
      if (operand.location.block >= 0) needed[operand.location.block] = true;
    });
    kept.push_back(std::move(steps[s]));
  }
  dead = recorded - int(kept.size());
  std::reverse(kept.begin(), kept.end());
  steps = std::move(kept);
}

// A launch extends the chain only if it reads the chain's results elementwise: element i from position i.
void Plan::make_groups(bool chains) {
  std::vector<int> writer(blocks.size(), -1);  // the last group that wrote to the block
  for (size_t s = 0; s < steps.size(); ++s) {
    Step& step = steps[s];
    const int current = int(groups.size()) - 1;
    if (s > 0) step.unfused_reason = chains ? why_not_chained(*this, steps[s - 1], step) : "fusion is off";
    each_operand(*this, step, [&](const Operand& operand, bool) {
      const int block = operand.location.block;
      if (s > 0 && !step.unfused_reason && block >= 0 && writer[block] == current && !in_order(operand))
        step.unfused_reason = "it reads other elements of what the step before it wrote";
    });
    if (s > 0 && !step.unfused_reason) ++groups.back().count;
    else groups.push_back({int(s), 1});
    each_operand(*this, step, [&](const Operand& operand, bool written) {
      if (written && operand.location.block >= 0) writer[operand.location.block] = int(groups.size()) - 1;
    });
  }
}

void Plan::find_lifetimes() {
  for (int g = 0; g < int(groups.size()); ++g) {
    for (int s = groups[g].first; s < groups[g].first + groups[g].count; ++s) {
      each_operand(*this, steps[s], [&](const Operand& operand, bool) {
        if (operand.location.block < 0) return;
        Block& block = blocks[operand.location.block];
        if (block.first < 0) block.first = g;
        block.last = g;
      });
    }
  }
}

// Makes temporaries that only one chain touches local. A local never leaves the cache: it needs a buffer for the elements of one
// pass of the chain only, and the next local takes this buffer after its last use.
void Plan::keep_locals() {
  std::vector<int> last(blocks.size(), -1);  // the last step of the group that uses the local
  for (int g = 0; g < int(groups.size()); ++g) {
    if (groups[g].count == 1) continue;
    std::vector<int> free;
    const auto each_local = [&](int s, auto&& f) {
      each_operand(*this, steps[s], [&](const Operand& operand, bool) {
        const int b = operand.location.block;
        if (b < 0 || blocks[b].first != g || blocks[b].last != g) return;
        if (blocks[b].kind == BlockKind::arena || blocks[b].kind == BlockKind::local) f(b);
      });
    };
    const int end = groups[g].first + groups[g].count;
    for (int s = groups[g].first; s < end; ++s) each_local(s, [&](int b) { last[b] = s; });
    int64_t count = 0;
    for (int s = groups[g].first; s < end; ++s) {
      each_local(s, [&](int b) {
        if (blocks[b].kind == BlockKind::local) return;
        blocks[b].kind = BlockKind::local;
        if (free.empty()) free.push_back(int(count++));
        blocks[b].offset = free.back();
        free.pop_back();
      });
      each_local(s, [&](int b) {
        if (last[b] == s) free.push_back(int(blocks[b].offset)), last[b] = -1;
      });
    }
    local_count = std::max(local_count, count);
  }
}

void replay_singly(Plan& plan, const StridedAddress* given, int64_t passes, Progress& progress, void (*launch)(const Launch&)) {
  const RestoreAttribution kept;
  for (int64_t pass = 0; pass < passes; ++pass) {
    plan.move_given(given, pass);
    progress.begun = 0;
    for (const Step& step : plan.steps) {
      ++progress.begun;
      door.attribution = step.attribution;
      if (door.ledger) door.ledger->enter(step.attribution.phase);
      launch(step.launch);
    }
    ++progress.passes;
  }
  progress.begun = 0;
  if (door.ledger) door.ledger->enter(kept.before.phase);
}

}  // namespace pb
