// Memory for arrays: large blocks are kept when they are released, since a fresh one costs a page fault every 4 KiB.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pb::cpu {

// At least `bytes` bytes, aligned to 64, uninitialised. Throws std::bad_alloc. From 64 KiB on, blocks come in classes
// at most 12.5 % larger than asked for, and out of the cache if it has one. Any thread.
void* allocate(size_t bytes);

// Gives back what allocate(bytes) returned, to the cache or the system. A null pointer is ignored. Any thread.
void release(void* data, size_t bytes) noexcept;

// Counted in large blocks, in bytes as they were taken from the system.
struct AllocatorStatistics {
  int64_t cached_bytes;  // released and kept
  int64_t live_bytes;    // allocated now
  int64_t peak_bytes;    // the most live_bytes has been since the start, or since reset_peak()
  int64_t hits, misses;  // allocations out of the cache, and from the system
};
AllocatorStatistics allocator_statistics();
void reset_peak();

// Returns cached blocks to the system, those least lately used first, until at most keep_bytes stay.
void trim(int64_t keep_bytes = 0) noexcept;

// The most that may be cached. Default: PULLBACK_CACHE_BYTES, or 1 GiB, or a quarter of the machine's memory if less.
int64_t cache_limit();
void set_cache_limit(int64_t bytes);

}  // namespace pb::cpu
