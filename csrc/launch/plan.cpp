// Prepares a recorded list of launches for its replays.
#include "launch/plan.h"

#include <algorithm>

#include "launch/rewrite.h"

namespace pb {

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
      alive |= written && (block < 0 || needed[block]);
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
