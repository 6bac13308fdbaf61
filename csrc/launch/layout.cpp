// Assigns offsets in the arena to the temporaries of a plan, the largest block first. Each block gets the lowest offset that is
// free during its lifetime. Two trees over time find this offset without a scan of all blocks, so the time per block hardly grows
// with the number of blocks that live at once, or one after the other.
#include <algorithm>
#include <iterator>
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

// Bytes of blocks that have an offset.
struct Placed {
  int64_t begin, end;
};

// Holds the bytes of the blocks that have an offset. Those of a block are stored in the nodes that together cover its lifetime. Blocks
// of one node live at the same moments, so their bytes are apart. They are sorted, and stored as one piece where they touch: many
// blocks that live long are a few pieces of most nodes.
class Lives {
 public:
  explicit Lives(int moments) : leaves_(leaves_for(moments)), nodes_(size_t(leaves_) * 2) {}

  void add(int first, int last, Placed placed) { add(1, 0, leaves_ - 1, first, last, placed); }
  // Returns the lowest offset, from `offset` on, where this many bytes are free from moment first to moment last.
  int64_t lowest_gap(int64_t offset, int64_t bytes, int first, int last) {
    rest_.clear();
    collect(1, 0, leaves_ - 1, first, last, offset);
    std::make_heap(rest_.begin(), rest_.end());
    while (!rest_.empty() && offset + bytes > rest_.front().next->begin) {
      std::pop_heap(rest_.begin(), rest_.end());
      Rest& rest = rest_.back();
      offset = std::max(offset, rest.next->end);
      rest.next = after(offset, rest.next, rest.end);
      rest.next == rest.end ? rest_.pop_back() : std::push_heap(rest_.begin(), rest_.end());
    }
    return offset;
  }

 private:
  struct Node {
    std::vector<Placed> here;
    int64_t end_below = 0;  // the largest end of a piece in the nodes below
  };
  // Those pieces of a node that have not been passed yet.
  struct Rest {
    const Placed *next, *end;
    bool operator<(const Rest& other) const { return next->begin > other.next->begin; }  // a heap has the largest in front
  };

  // Returns the first of these pieces that ends above the offset.
  static const Placed* after(int64_t offset, const Placed* from, const Placed* to) {
    return std::upper_bound(from, to, offset, [](int64_t value, const Placed& placed) { return value < placed.end; });
  }
  // Adds bytes to sorted pieces, which they do not overlap.
  static void join(std::vector<Placed>& pieces, Placed placed) {
    const Placed* all = pieces.data();
    const auto next = pieces.begin() + (after(placed.begin, all, all + pieces.size()) - all);
    const bool on_next = next != pieces.end() && next->begin == placed.end;
    if (next == pieces.begin() || std::prev(next)->end != placed.begin) {
      if (on_next) return void(next->begin = placed.begin);
      return void(pieces.insert(next, placed));
    }
    std::prev(next)->end = on_next ? next->end : placed.end;
    if (on_next) pieces.erase(next);
  }
  void add(int n, int from, int to, int first, int last, Placed placed) {
    if (to < first || last < from) return;
    Node& node = nodes_[n];
    if (first <= from && to <= last) return join(node.here, placed);
    node.end_below = std::max(node.end_below, placed.end);
    const int middle = (from + to) / 2;
    add(2 * n, from, middle, first, last, placed), add(2 * n + 1, middle + 1, to, first, last, placed);
  }
  void collect(int n, int from, int to, int first, int last, int64_t offset) {
    if (to < first || last < from) return;
    const Node& node = nodes_[n];
    const Placed* end = node.here.data() + node.here.size();
    const Placed* next = after(offset, node.here.data(), end);
    if (next != end) rest_.push_back({next, end});
    if (node.end_below <= offset) return;
    const int middle = (from + to) / 2;
    collect(2 * n, from, middle, first, last, offset), collect(2 * n + 1, middle + 1, to, first, last, offset);
  }

  int leaves_;
  std::vector<Node> nodes_;
  std::vector<Rest> rest_;
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
    b->offset = lives.lowest_gap(filled.most(b->first, b->last), b->bytes, b->first, b->last);
    const int64_t end = b->offset + (std::max<int64_t>(b->bytes, 1) + align - 1) / align * align;
    lives.add(b->first, b->last, {b->offset, end});
    filled.take(b->first, b->last, b->offset, end);
    arena_bytes = std::max(arena_bytes, end);
  }
}

}  // namespace pb
