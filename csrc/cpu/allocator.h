// The cache of released blocks that allocator.cpp keeps: its size, and a way to empty it.
#pragma once
#include <cstdint>
#include <string>

namespace pb::cpu {

struct CacheUse {
  int64_t cached;      // bytes of the blocks in the cache
  int64_t limit;       // the most bytes that the cache may hold
  std::string source;  // what sets the limit, in words
};

CacheUse cache_use();

// Returns all cached blocks, and malloc's free pages, to the system. Returns the bytes of the blocks. Any thread may call it.
int64_t trim_cache();

}  // namespace pb::cpu
