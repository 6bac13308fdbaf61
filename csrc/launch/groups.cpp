// Groups the steps of a plan: finds the steps that can share one pass over blocks of elements, and the temporaries that then need
// only a block of memory.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "launch/rewrite.h"

namespace pb {
namespace {

// Where an operand begins: an offset in its block, or an address.
int64_t position(const Operand& operand) {
  return operand.location.block >= 0 ? operand.location.offset : reinterpret_cast<intptr_t>(operand.view.data);
}

// An operand that steps of a group touch: its first element together with element `start` of a chain, and so on. chain: -1 if
// there is no such order.
struct Touch {
  const Operand* operand;
  int chain;
  int64_t start;
};

// True if both operands, which share memory, are touched element by element together.
bool together(const Touch& a, const Touch& b) {
  const View &v = a.operand->view, &w = b.operand->view;
  const int64_t size = item_size(v.dtype);
  return a.chain >= 0 && a.chain == b.chain && size == item_size(w.dtype) && v.contiguous() && w.contiguous() &&
         position(*a.operand) - a.start * size == position(*b.operand) - b.start * size;
}

// The memory that a group touches.
class Touched {
 public:
  explicit Touched(size_t blocks) : in_blocks_(blocks) {}

  // True if a step of the group may touch this operand, although it writes memory that other steps touch or touches what they write.
  bool allows(const Touch& touch, bool written) const {
    const int block = touch.operand->location.block;
    if (block >= 0) {
      for (const auto& [other, wrote] : in_blocks_[block])
        if ((written || wrote) && !together(other, touch)) return false;
      return true;
    }
    return allows_outside(outside_[1], touch) && (!written || allows_outside(outside_[0], touch));
  }
  void add(const Touch& touch, bool written) {
    const int block = touch.operand->location.block;
    if (block >= 0) {
      in_blocks_[block].push_back({touch, written});
      used_.push_back(block);
      return;
    }
    const Extent extent = extent_of(touch.operand->view);
    Outside& outside = outside_[written];
    outside.touches.emplace(extent.begin, touch);
    outside.longest = std::max<int64_t>(outside.longest, extent.end - extent.begin);
  }
  void clear() {
    for (const int block : used_) in_blocks_[block].clear();
    used_.clear();
    outside_[0] = outside_[1] = {};
  }
  // Returns the touch that wrote the block of this operand, or null if the group has not written to it.
  const Touch* writer(const Operand& operand) const {
    if (operand.location.block < 0) return nullptr;
    for (const auto& [touch, wrote] : in_blocks_[operand.location.block])
      if (wrote) return &touch;
    return nullptr;
  }

 private:
  struct Outside {
    std::multimap<const char*, Touch> touches;  // by the begin of their extents
    int64_t longest = 0;                        // the bytes of the longest extent
  };
  static bool allows_outside(const Outside& outside, const Touch& touch) {
    const Extent extent = extent_of(touch.operand->view);
    for (auto other = outside.touches.lower_bound(extent.begin - outside.longest); other != outside.touches.end(); ++other) {
      if (other->first >= extent.end) break;
      if (extent_of(other->second.operand->view).end > extent.begin && !together(other->second, touch)) return false;
    }
    return true;
  }

  std::vector<std::vector<std::pair<Touch, bool>>> in_blocks_;
  std::vector<int> used_;
  Outside outside_[2];  // memory that is read, and memory that is written
};

bool same_shape(const View& a, const View& b) {
  return a.ndim == b.ndim && !std::memcmp(a.shape, b.shape, a.ndim * sizeof *a.shape);
}

// Groups steps one after another.
class Grouping {
 public:
  Grouping(Plan& plan, bool share) : plan_(plan), share_(share), touched_(plan.blocks.size()) {}

  void add(int s) {
    Step& step = plan_.steps[s];
    const bool elementwise = share_ && is_elementwise(plan_, step);
    if (s > 0) step.unfused_reason = share_ ? why_not_added(s) : "fusion is off";
    if (s == 0 || step.unfused_reason) begin(s, elementwise);
    else ++plan_.groups.back().count;
    if (elementwise) extend(s);
  }
  // Completes the last group.
  void end() {
    if (!plan_.groups.empty()) cut(plan_.groups.back());
  }

 private:
  const char* why_not_added(int s) {
    const Step &step = plan_.steps[s], &before = plan_.steps[s - 1];
    if (plan_.groups.back().chains.empty()) return why_not_together(plan_, before, step);
    if (const char* reason = why_not_together(plan_, before, step)) return reason;
    if (!is_elementwise(plan_, step)) return follow(s);
    const View &a = plan_.out(before).view, &b = plan_.out(step).view;
    const bool same = same_shape(a, b);
    if (!same && (before.attribution.phase != step.attribution.phase || (a.size() == 1) != (b.size() == 1)))
      return "another shape than the step before it";
    const int chain = int(plan_.groups.back().chains.size()) - (same ? 1 : 0);
    bool allowed = true;
    each_operand(plan_, step, [&](const Operand& operand, bool written) {
      allowed = allowed && touched_.allows({&operand, chain, 0}, written);
    });
    if (allowed) return nullptr;
    return same ? "it reads other elements of what the step before it wrote" : "another shape than the step before it";
  }
  void begin(int s, bool elementwise) {
    end();
    touched_.clear();
    plan_.groups.push_back({s, 1, {}, {}});
    if (elementwise) plan_.groups.back().chains.push_back({s, 0});
  }
  void extend(int s) {
    std::vector<Chain>& chains = plan_.groups.back().chains;
    if (chains.back().count > 0 && !same_shape(plan_.out(plan_.steps[s - 1]).view, plan_.out(plan_.steps[s]).view))
      chains.push_back({s, 0});
    ++chains.back().count;
    const int chain = int(chains.size()) - 1;
    each_operand(plan_, plan_.steps[s],
                 [&](const Operand& operand, bool written) { touched_.add({&operand, chain, 0}, written); });
  }

  // Cuts chains where the steps before and after share no memory but single numbers, so that few arrays are streamed at a time.
  void cut(Group& group) {
    if (!group.follows.empty() || group.chains.empty()) return;
    std::vector<Chain> parts;
    for (const Chain& chain : group.chains) {
      const auto each_array = [&](int s, auto&& f) {
        each_operand(plan_, plan_.steps[s], [&](const Operand& operand, bool) {
          if (!repeats_one(operand.view)) f(std::pair(operand.location.block, position(operand)));
        });
      };
      std::map<std::pair<int, int64_t>, int> last;
      const int end = chain.first + chain.count;
      for (int s = chain.first; s < end; ++s) each_array(s, [&](auto array) { last[array] = s; });
      int until = chain.first;
      for (int s = chain.first; s < end; ++s) {
        if (s == chain.first || s > until) parts.push_back({s, 0});
        ++parts.back().count;
        each_array(s, [&](auto array) { until = std::max(until, last[array]); });
      }
    }
    group.chains = std::move(parts);
  }

  // Lets an update be the last step of the last group. Returns the reason why it cannot.
  const char* follow(int s) {
    Group& group = plan_.groups.back();
    const Step& step = plan_.steps[s];
    if (step.attribution.phase != plan_.steps[s - 1].attribution.phase) return "another phase than the step before it";
    cut(group);
    touched_.clear();
    for (int c = 0; c < int(group.chains.size()); ++c) {
      for (int k = group.chains[c].first; k < group.chains[c].first + group.chains[c].count; ++k)
        each_operand(plan_, plan_.steps[k],
                     [&](const Operand& operand, bool written) { touched_.add({&operand, c, 0}, written); });
    }
    std::vector<Follows> follows(step.launch.inputs, {-1, 0});
    bool some = false;
    for (int i = 0; i < step.launch.inputs; ++i) {
      const Operand& input = plan_.in(step, i);
      const Touch* writer = input.view.data ? touched_.writer(input) : nullptr;
      if (!writer) continue;
      follows[i] = {writer->chain, (input.location.offset - writer->operand->location.offset) / item_size(input.view.dtype)};
      some = true;
    }
    if (!some) return "it reads nothing that the steps before it computed";
    for (int k = 0; k < step.launch.outputs + step.launch.inputs; ++k) {
      const Operand& operand = plan_.operand(step, k);
      const int input = goes_with(step.launch, k);
      if (!operand.view.data) continue;
      const Touch touch{&operand, input < 0 ? -1 : follows[input].chain, input < 0 ? 0 : follows[input].start};
      if (!touched_.allows(touch, k < step.launch.outputs)) return "it touches other elements than the steps before it";
    }
    group.follows = std::move(follows);
    return nullptr;
  }

  Plan& plan_;
  const bool share_;
  Touched touched_;
};

}  // namespace

void Plan::make_groups(bool share) {
  Grouping grouping(*this, share);
  for (int s = 0; s < int(steps.size()); ++s) grouping.add(s);
  grouping.end();
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

// Makes temporaries that only one chain touches, and perhaps the update after it, local. A local never leaves the cache: it needs a
// buffer for the elements of one block only, and the next local takes this buffer after its last use. What the update reads keeps
// its buffer to the end of the chain.
void Plan::keep_locals() {
  std::vector<int> last(blocks.size(), -1);  // the last step of the group that uses the local
  for (int g = 0; g < int(groups.size()); ++g) {
    if (groups[g].count == 1) continue;
    const int update = groups[g].follows.empty() ? -1 : groups[g].first + groups[g].count - 1;
    const auto each_local = [&](int s, auto&& f) {
      each_operand(*this, steps[s], [&](const Operand& operand, bool) {
        const int b = operand.location.block;
        if (b < 0 || blocks[b].first != g || blocks[b].last != g) return;
        if (blocks[b].kind == BlockKind::arena || blocks[b].kind == BlockKind::local) f(b);
      });
    };
    for (const Chain& chain : groups[g].chains) {
      const int end = chain.first + chain.count;
      for (int s = chain.first; s < end; ++s) each_local(s, [&](int b) { last[b] = s; });
    }
    if (update >= 0) each_local(update, [&](int b) { last[b] = update; });
    for (const Chain& chain : groups[g].chains) {
      std::vector<int> free;
      int64_t count = 0;
      for (int s = chain.first; s < chain.first + chain.count; ++s) {
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
}

}  // namespace pb
