// Assigns offsets in the arena to the temporaries of a plan, the largest block first. Each block gets the lowest offset that is
// free during its lifetime. Two trees over time find this offset without a scan of all blocks, so the time per block hardly grows
// with the number of blocks that live at once, or one after the other.
#include <algorithm>
#include <vector>

#include "launch/plan.h"

namespace pb {
namespace {

// Returns the number of leaves of a binary tree over the moments 0 to count - 1 (a moment is one group of the plan). The root is
// node 1, and the children of node n are 2n and 2n + 1.
int leaves_for(int count) {
  int leaves = 1;
  while (leaves < count) leaves *= 2;
  return leaves;
}

// Holds a level for each moment: below this offset nothing is free. The true level may be higher, but never lower.
class Filled {
 public:
  explicit Filled(int moments) : leaves_(leaves_for(moments)), nodes_(size_t(leaves_) * 2) {}

  // Returns the highest level of the moments first to last.
  int64_t most(int first, int last) { return most(1, 0, leaves_ - 1, first, last); }
  // Marks bytes [begin, end) as taken from moment first to moment last.
  void take(int first, int last, int64_t begin, int64_t end) { take(1, 0, leaves_ - 1, {first, last, begin, end}); }

 private:
  struct Node {
    int64_t least = 0, most = 0;
  };
  struct Piece {
    int first, last;
    int64_t begin, end;
  };

  void tell_children(int n) {
    if (nodes_[n].least == nodes_[n].most) nodes_[2 * n] = nodes_[2 * n + 1] = nodes_[n];
  }
  int64_t most(int n, int from, int to, int first, int last) {
    if (to < first || last < from) return 0;
    if (nodes_[n].least == nodes_[n].most || (first <= from && to <= last)) return nodes_[n].most;
    const int middle = (from + to) / 2;
    return std::max(most(2 * n, from, middle, first, last), most(2 * n + 1, middle + 1, to, first, last));
  }
  void take(int n, int from, int to, const Piece& piece) {
    Node& node = nodes_[n];
    if (to < piece.first || piece.last < from || node.most < piece.begin || node.least >= piece.end) return;
    if (piece.first <= from && to <= piece.last && node.least >= piece.begin && node.most < piece.end)
      return void(node.least = node.most = piece.end);
    tell_children(n);
    const int middle = (from + to) / 2;
    take(2 * n, from, middle, piece), take(2 * n + 1, middle + 1, to, piece);
    node.least = std::min(nodes_[2 * n].least, nodes_[2 * n + 1].least);
    node.most = std::max(nodes_[2 * n].most, nodes_[2 * n + 1].most);
  }

  int leaves_;
  std::vector<Node> nodes_;
};

struct Placed {
  int64_t begin, end;
  bool operator<(const Placed& other) const { return begin != other.begin ? begin < other.begin : end < other.end; }
};

// Holds the blocks that have an offset. Each is stored in the nodes that together cover its lifetime.
class Lives {
 public:
  explicit Lives(int moments) : leaves_(leaves_for(moments)), nodes_(size_t(leaves_) * 2) {}

  void add(int first, int last, Placed placed) { add(1, 0, leaves_ - 1, first, last, placed); }
  // Returns the blocks that live at some moment from first to last and end above `bottom`, sorted by offset. The next call
  // overwrites the result.
  const std::vector<Placed>& above(int64_t bottom, int first, int last) {
    found_.clear();
    collect(1, 0, leaves_ - 1, first, last, bottom);
    std::sort(found_.begin(), found_.end());
    return found_;
  }

 private:
  struct Node {
    std::vector<Placed> here;
    int64_t end_here = 0, end_below = 0;  // the largest end of a block in this node, and in the nodes below it
  };

  void add(int n, int from, int to, int first, int last, Placed placed) {
    if (to < first || last < from) return;
    Node& node = nodes_[n];
    if (first <= from && to <= last) {
      node.here.push_back(placed);
      node.end_here = std::max(node.end_here, placed.end);
      return;
    }
    node.end_below = std::max(node.end_below, placed.end);
    const int middle = (from + to) / 2;
    add(2 * n, from, middle, first, last, placed), add(2 * n + 1, middle + 1, to, first, last, placed);
  }
  void collect(int n, int from, int to, int first, int last, int64_t bottom) {
    if (to < first || last < from) return;
    const Node& node = nodes_[n];
    if (node.end_here > bottom)
      for (const Placed& placed : node.here)
        if (placed.end > bottom) found_.push_back(placed);
    if (node.end_below <= bottom) return;
    const int middle = (from + to) / 2;
    collect(2 * n, from, middle, first, last, bottom), collect(2 * n + 1, middle + 1, to, first, last, bottom);
  }

  int leaves_;
  std::vector<Node> nodes_;
  std::vector<Placed> found_;
};

}  // namespace

void Plan::lay_out(int64_t align) {
  std::vector<Block*> order;
  for (Block& b : blocks)
    if (b.kind == BlockKind::arena && b.first >= 0) order.push_back(&b);
  std::stable_sort(order.begin(), order.end(), [](const Block* a, const Block* b) { return a->bytes > b->bytes; });
  const int moments = std::max(1, int(groups.size()));
  Filled filled(moments);
  Lives lives(moments);
  for (Block* b : order) {
    b->offset = filled.most(b->first, b->last);
    for (const Placed& other : lives.above(b->offset, b->first, b->last)) {
      if (b->offset + b->bytes <= other.begin) break;
      b->offset = std::max(b->offset, other.end);
    }
    const int64_t end = b->offset + (std::max<int64_t>(b->bytes, 1) + align - 1) / align * align;
    lives.add(b->first, b->last, {b->offset, end});
    filled.take(b->first, b->last, b->offset, end);
    arena_bytes = std::max(arena_bytes, end);
  }
}

}  // namespace pb
