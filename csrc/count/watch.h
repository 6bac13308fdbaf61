// Watches a launch: the work that is done on its numbers, and which bytes of its operands are read and written.
#pragma once
#include "launch/door.h"

namespace pb::count {

// Work, and bytes: read before the launch wrote them, and written; of elements of its operands, each byte once.
struct Seen {
  int64_t adds, multiplies, fmas, special, bytes_read, bytes_written;
};

void watch(const Launch& launch);
void watch();  // whatever comes, but not its memory
Seen seen();   // ends it

}  // namespace pb::count
