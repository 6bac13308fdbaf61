// What is done to a list of launches before it is replayed.
#include "launch/plan.h"

#include <algorithm>

namespace pb {
namespace {

// Whether element i of the view is element i of its block, one after the other.
bool in_order(const View& v, const Place& place) { return place.offset == 0 && v.contiguous(); }

}  // namespace

void Plan::finish(bool fuse, int64_t align) {
  point_at_numbers();
  if (fuse) drop_dead();
  make_groups(fuse);
  find_lifetimes();
  if (fuse) keep_locals();
  lay_out(align);
  operands_of.assign(blocks.size(), {});
  for (size_t k = 0; k < places.size(); ++k)
    if (places[k].block >= 0) operands_of[places[k].block].push_back(k);
}

void Plan::move(int block, char* data) {
  for (const size_t k : operands_of[block]) operands[k].data = data + places[k].offset;
}

// Neither operands nor numbers move any more: what points at them can be set.
void Plan::point_at_numbers() {
  for (size_t k = 0; k < operands.size(); ++k)
    if (operands[k].number) operands[k].data = reinterpret_cast<char*>(&numbers[places[k].offset]);
  for (Step& step : steps) step.launch.operands = operands.data() + step.operand;
}

// A launch is needed if it writes to memory that stays, or that a later one reads. What it writes to was written before it, too:
// some launches change what is there.
void Plan::drop_dead() {
  std::vector<bool> needed(blocks.size());
  for (size_t b = 0; b < blocks.size(); ++b) needed[b] = blocks[b].home == Home::result;
  std::vector<Step> kept;
  for (size_t s = steps.size(); s-- > 0;) {
    const Launch& launch = steps[s].launch;
    const size_t first = steps[s].operand;
    bool alive = false;
    for (int k = 0; k < launch.outputs; ++k) {
      const int block = places[first + k].block;
      alive |= block < 0 ? launch.out(k).data != nullptr : bool(needed[block]);
    }
    if (!alive) continue;
    for (int k = 0; k < launch.outputs + launch.inputs; ++k)
      if (const int block = places[first + k].block; block >= 0) needed[block] = true;
    kept.push_back(steps[s]);
  }
  dead = recorded - int(kept.size());
  steps.assign(kept.rbegin(), kept.rend());
}

// A chain goes on while each launch reads what the chain has written only element by element, where it writes.
void Plan::make_groups(bool fuse) {
  std::vector<int> writer(blocks.size(), -1);  // the last group that wrote to the block
  for (size_t s = 0; s < steps.size(); ++s) {
    Step& step = steps[s];
    const Launch& launch = step.launch;
    const int current = int(groups.size()) - 1;
    bool joins = fuse && s > 0;
    if (joins) step.why_alone = why_not_chained(steps[s - 1].launch, launch);
    joins = joins && !step.why_alone;
    for (int k = 0; joins && k < launch.outputs + launch.inputs; ++k) {
      const Place& place = places[step.operand + k];
      if (place.block < 0 || writer[place.block] != current || in_order(launch.operands[k], place)) continue;
      step.why_alone = "it reads other elements of what the step before it wrote";
      joins = false;
    }
    if (joins) ++groups.back().count;
    else groups.push_back({int(s), 1});
    for (int k = 0; k < launch.outputs; ++k)
      if (const int block = places[step.operand + k].block; block >= 0) writer[block] = int(groups.size()) - 1;
  }
}

void Plan::find_lifetimes() {
  for (int g = 0; g < int(groups.size()); ++g) {
    for (int s = groups[g].first; s < groups[g].first + groups[g].count; ++s) {
      const Step& step = steps[s];
      for (int k = 0; k < step.launch.outputs + step.launch.inputs; ++k) {
        const int b = places[step.operand + k].block;
        if (b < 0) continue;
        if (blocks[b].first < 0) blocks[b].first = g;
        blocks[b].last = g;
      }
    }
  }
}

// Temporaries that only one chain touches never leave the cache: a piece of a block's length serves them, and another one
// after their last use.
void Plan::keep_locals() {
  for (int g = 0; g < int(groups.size()); ++g) {
    if (groups[g].count == 1) continue;
    std::vector<int> free, last(blocks.size(), -1);
    const auto each_local = [&](int s, auto&& f) {
      for (int k = 0; k < steps[s].launch.outputs + steps[s].launch.inputs; ++k) {
        const int b = places[steps[s].operand + k].block;
        if (b >= 0 && (blocks[b].home == Home::arena || blocks[b].home == Home::local) && blocks[b].first == g &&
            blocks[b].last == g)
          f(b);
      }
    };
    const int end = groups[g].first + groups[g].count;
    for (int s = groups[g].first; s < end; ++s) each_local(s, [&](int b) { last[b] = s; });
    int64_t count = 0;
    for (int s = groups[g].first; s < end; ++s) {
      each_local(s, [&](int b) {
        if (blocks[b].home == Home::local) return;
        blocks[b].home = Home::local;
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

// The largest first, each at the lowest offset that is free while it lives.
void Plan::lay_out(int64_t align) {
  std::vector<Block*> order, placed;
  for (Block& b : blocks)
    if (b.home == Home::arena && b.first >= 0) order.push_back(&b);
  std::stable_sort(order.begin(), order.end(), [](const Block* a, const Block* b) { return a->bytes > b->bytes; });
  const auto end_of = [align](const Block* b) {
    return b->offset + (std::max<int64_t>(b->bytes, 1) + align - 1) / align * align;
  };
  for (Block* b : order) {
    b->offset = 0;
    for (const Block* other : placed) {  // by offset
      if (other->last < b->first || b->last < other->first) continue;
      if (b->offset + b->bytes <= other->offset) break;
      b->offset = std::max(b->offset, end_of(other));
    }
    placed.insert(std::upper_bound(placed.begin(), placed.end(), b, [](auto* x, auto* y) { return x->offset < y->offset; }), b);
    arena_bytes = std::max(arena_bytes, end_of(b));
  }
}

void replay_singly(const Plan& plan, int& done) {
  struct Restore {
    Charge charge = door.charge;
    ~Restore() { door.charge = charge; }
  } restore;
  for (const Step& step : plan.steps) {
    ++done;
    door.charge = step.charge;
    run(step.launch);
  }
}

}  // namespace pb
