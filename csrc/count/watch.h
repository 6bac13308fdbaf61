// Watches a launch: counts the operations on its numbers, and the bytes of its operands that it reads and writes.
#pragma once
#include "launch/door.h"

namespace pb::count {

// The operations of a launch, and the bytes of its operands' elements: bytes_read were read before the launch wrote them. Each byte
// counts at most once as read and once as written.
struct Seen {
  int64_t adds, multiplies, fmas, special, bytes_read, bytes_written;
};

void watch(const Launch& launch);  // starts to watch a launch that is about to run
void watch();                      // starts to count the operations of any later code, but no bytes
Seen seen();                       // stops watching, and returns the counts

}  // namespace pb::count
