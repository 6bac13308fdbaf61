// Implements asynchronous copies as lists: each thread has a list of its pending copies, divided into groups.
#include "cudasim/async_copy.h"

#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "cudasim/block.h"

namespace cudasim {
namespace {

struct Copy {
  void* to;
  const void* from;
  size_t bytes, zeros;
};

struct Copies {
  std::vector<Copy> open;                // copies that belong to no group yet
  std::deque<std::vector<Copy>> groups;  // oldest first
};

Copies& copies_of(unsigned thread) {
  static thread_local std::vector<Copies> all(kMaxThreads);
  return all[thread];
}

void perform(const std::vector<Copy>& group) {
  for (const Copy& copy : group) {
    std::memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
    std::memset(static_cast<char*>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
  }
  pending_copies -= group.size();
}

}  // namespace

void start_copy(void* shared, const void* global, size_t bytes, size_t zeros) {
  if (bytes != 4 && bytes != 8 && bytes != 16) fail("an asynchronous copy has 4, 8 or 16 bytes, not %zu", bytes);
  if (zeros > bytes) fail("an asynchronous copy of %zu bytes cannot have %zu zeros", bytes, zeros);
  if ((uintptr_t(shared) | uintptr_t(global)) % bytes) fail("an asynchronous copy of %zu bytes is misaligned", bytes);
  std::memset(shared, 0xff, bytes);  // a read before the wait returns NaN
  copies_of(Block::running().thread()).open.push_back({shared, global, bytes, zeros});
  ++pending_copies;
}

void commit_copies() {
  Copies& mine = copies_of(Block::running().thread());
  mine.groups.emplace_back();
  mine.groups.back().swap(mine.open);
}

void wait_for_copies(size_t prior) {
  Copies& mine = copies_of(Block::running().thread());
  for (; mine.groups.size() > prior; mine.groups.pop_front()) perform(mine.groups.front());
}

void finish_copies(unsigned thread) {
  Copies& all = copies_of(thread);
  for (; !all.groups.empty(); all.groups.pop_front()) perform(all.groups.front());
  perform(all.open);
  all.open.clear();
}

}  // namespace cudasim
