// The division of the tensors of an optimizer among threads.
#pragma once
#include <algorithm>

#include "launch/shape.h"

namespace pb::cpu {

constexpr int64_t kUpdateGrain = 32 * 1024;  // the fewest elements per thread: Adam moves 28 bytes for each, about 10 us in all

// The gradients of a launch in pieces of `piece` elements, which are numbered one after another: member by member, and entry by entry
// within a member. The last piece of a part may be smaller. A missing gradient has no pieces.
struct Pieces {
  const View* gradients;
  int64_t entries, members, piece;

  int64_t of(int64_t t) const { return gradients[t].data ? (gradients[t].size() / members + piece - 1) / piece : 0; }
  int64_t of_member() const {
    int64_t count = 0;
    for (int64_t t = 0; t < entries; ++t) count += of(t);
    return count;
  }
  int64_t count() const { return members * of_member(); }
  // Calls f(entry, member, first, last) for the pieces of each part that are within the pieces [begin, end).
  template <class F> void each(int64_t begin, int64_t end, F&& f) const {
    const int64_t in_member = of_member();
    if (begin >= end) return;
    int64_t member = begin / in_member, start = member * in_member;
    for (; start < end; ++member) {
      for (int64_t t = 0; t < entries && start < end; ++t) {
        const int64_t stop = start + of(t);
        if (std::max(begin, start) < std::min(end, stop))
          f(t, member, std::max(begin, start) - start, std::min(end, stop) - start);
        start = stop;
      }
    }
  }
};

}  // namespace pb::cpu
