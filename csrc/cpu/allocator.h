// Memory for arrays: large blocks are kept when they are released, since a fresh one costs a page fault every 4 KiB.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pb::cpu {

// At least `bytes` bytes, aligned to 64, uninitialised. Throws std::bad_alloc. From 64 KiB on, blocks come in classes
// at most 12.5 % larger than asked for, and out of the cache if it has one. Any thread.
void* allocate(size_t bytes);

// Gives back what allocate(bytes) returned, to the cache (of PULLBACK_CACHE_BYTES at most; by default 1 GiB, or a quarter of
// the machine's memory if that is less) or the system. A null pointer is ignored. Any thread.
void release(void* data, size_t bytes) noexcept;

}  // namespace pb::cpu
