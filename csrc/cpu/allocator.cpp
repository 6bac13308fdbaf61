// The caching allocator. It keeps large blocks when they are released, because fresh memory costs a page fault every 4 KiB. Blocks
// of at least 64 KiB come in size classes, which are at most 12.5 % larger than the requested size. The cache holds at most
// PULLBACK_CACHE_BYTES; the default is 1 GiB, or a quarter of the memory that the process may use (memory_limit.h) if that is less.
// The allocator evicts cached blocks before the process comes close to its memory limit: see Cache::make_room.
#include "cpu/allocator.h"
#include "cpu/memory_limit.h"
#include "launch/memory.h"
#include "launch/door.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <vector>

namespace pb {
namespace {

constexpr size_t kAlign = 64;
constexpr int kFirstShift = 16;  // blocks of at least 64 KiB are cached; malloc is fast for smaller ones
#if defined(PB_SANITIZE)
constexpr size_t kLarge = SIZE_MAX;  // blocks have exactly the requested size, so that a sanitizer sees their ends
constexpr size_t kLeast = 1;
#else
constexpr size_t kLarge = size_t{1} << kFirstShift;
constexpr size_t kLeast = kAlign;
#endif
constexpr int kSteps = 8;  // the number of classes from one power of two to the next
constexpr int kClasses = (47 - kFirstShift) * kSteps + 1;
constexpr size_t kHuge = size_t{4} << 20;  // blocks of at least this size use huge pages if the system has them
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kCacheBytes = int64_t{1} << 30;   // the most that the cache holds by default
constexpr int64_t kFreshBytes = int64_t{16} << 20;  // fresh memory between two readings of the resident size

std::atomic<int64_t> live{0};  // requested bytes that are not released yet

Allocation counted(void* data, size_t bytes) {
  live.fetch_add(int64_t(bytes), std::memory_order_relaxed);
  return {data, bytes};
}

int log2_floor(size_t x) { return 63 - __builtin_clzll(x); }

// Returns the smallest class that holds `bytes` >= kLarge bytes. The sizes of classes are 2^s * (8 + step) / 8.
int class_of(size_t bytes) {
  const size_t last = bytes - 1;  // so that exact sizes stay in their class
  const int shift = log2_floor(last);
  const int step = static_cast<int>((last >> (shift - 3)) & (kSteps - 1));
  return (shift - kFirstShift) * kSteps + step + 1;
}

size_t size_of(int size_class) {
  return (size_t{1} << (kFirstShift + size_class / kSteps)) / kSteps * (kSteps + size_class % kSteps);
}

void* from_system(size_t bytes) {
  const size_t align = bytes >= kHuge ? kHugePage : kAlign;
  void* data = nullptr;
  if (posix_memalign(&data, align, std::max(bytes, kLeast)) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
  if (bytes >= kHuge) madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // only advice, so a failure is not an error
#endif
  return data;
}

// Returns malloc's free pages to the system. Without this call, glibc may keep freed blocks of up to 32 MiB.
void return_free_pages() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

struct CacheLimit {
  int64_t bytes;
  std::string source;
};

CacheLimit cache_limit(const cpu::MemoryLimit& memory) {
  if (const char* text = std::getenv("PULLBACK_CACHE_BYTES")) {
    char* end = nullptr;
    const long long bytes = std::strtoll(text, &end, 10);
    if (end != text && bytes >= 0) return {bytes, "PULLBACK_CACHE_BYTES"};
  }
  if (memory.bytes / 4 >= kCacheBytes) return {kCacheBytes, "the default"};
  return {memory.bytes / 4, "a quarter of the limit by " + memory.source};
}

struct Cache {
  std::mutex mutex;
  struct Shelf {
    std::vector<void*> blocks;  // last in, first out, because the newest block may still be in the CPU's cache
    uint64_t used = 0;          // the time of the last use, on the clock below
  } shelf[kClasses];
  uint64_t clock = 0;
  const cpu::MemoryLimit memory = cpu::memory_limit();
  const CacheLimit limit = cache_limit(memory);
  const int64_t full = memory.bytes / 4 * 3;                             // resident bytes above which the cache shrinks
  const int64_t fresh_bytes = std::min(kFreshBytes, memory.bytes / 64);  // kFreshBytes, less in a very small container
  int64_t cached = 0;                                                    // bytes of the cached blocks, as sized by their class
  int64_t fresh = 0;  // bytes taken from the system since the resident size was read

  void evict(int64_t keep);
  void make_room(int64_t size);
};

// Returns the cache, which is never destroyed, because arrays may be released while the process ends. The lock is held during a
// fork, so that the child does not find it locked by a thread that does not exist there.
Cache& the_cache() {
  static Cache* cache = [] {
    static Cache* made = new Cache;
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); }, [] { made->mutex.unlock(); });
    return made;
  }();
  return *cache;
}

void Cache::evict(int64_t keep) {
  while (cached > keep) {
    int oldest = -1;
    for (int c = 0; c < kClasses; ++c) {
      if (!shelf[c].blocks.empty() && (oldest < 0 || shelf[c].used < shelf[oldest].used)) oldest = c;
    }
    if (oldest < 0) return;
    std::free(shelf[oldest].blocks.back());
    shelf[oldest].blocks.pop_back();
    cached -= static_cast<int64_t>(size_of(oldest));
  }
}

// Called before a block of `size` bytes is taken from the system. Evicts the oldest cached blocks if the process would occupy
// more than three quarters of its memory limit. Without this, a container that is mostly filled by the user's own arrays would be
// killed while the cache still holds blocks: posix_memalign() succeeds there up to the end, so its failure cannot be the only
// reason to trim.
//
// The process's resident size counts, not the bytes allocated here, because NumPy's arrays and the interpreter fall under the
// same limit. The page cache does not count: the system reclaims it by itself. The remaining quarter is for other processes of
// the container, and for growth between two readings. Reading the size takes a few microseconds, so it is read once per
// 16 MiB of fresh memory, whose page faults take milliseconds. A block that comes from the cache costs nothing extra.
void Cache::make_room(int64_t size) {
  fresh += size;
  if (fresh < fresh_bytes) return;
  fresh = 0;
  const int64_t excess = cpu::resident_bytes() + size - full;
  if (excess <= 0 || cached == 0) return;
  evict(std::max<int64_t>(0, cached - excess - fresh_bytes));
  return_free_pages();
}

}  // namespace

Allocation allocate(size_t bytes, Holder) {
  if (bytes < kLarge) {
    if (void* data = from_system(bytes)) return counted(data, bytes);
    cpu::trim_cache();
    if (void* data = from_system(bytes)) return counted(data, bytes);
    throw std::bad_alloc();
  }
  if (bytes > size_of(kClasses - 1)) throw std::bad_alloc();
  const int size_class = class_of(bytes);
  const size_t size = size_of(size_class);
  Cache& cache = the_cache();
  void* data = nullptr;
  {
    std::lock_guard<std::mutex> lock(cache.mutex);
    Cache::Shelf& shelf = cache.shelf[size_class];
    shelf.used = ++cache.clock;
    if (!shelf.blocks.empty()) {
      data = shelf.blocks.back();
      shelf.blocks.pop_back();
      cache.cached -= static_cast<int64_t>(size);
    } else {
      cache.make_room(static_cast<int64_t>(size));
    }
  }
  if (data || (data = from_system(size))) return counted(data, bytes);
  cpu::trim_cache();
  if ((data = from_system(size))) return counted(data, bytes);
  throw std::bad_alloc();
}

void release(const Allocation& block) noexcept {
  void* data = block.data;
  const size_t bytes = block.bytes;
  if (!data) return;
  live.fetch_sub(int64_t(bytes), std::memory_order_relaxed);
  if (bytes < kLarge) return std::free(data);
  const int size_class = class_of(bytes);
  const int64_t size = static_cast<int64_t>(size_of(size_class));
  Cache& cache = the_cache();
  {
    std::lock_guard<std::mutex> lock(cache.mutex);
    if (size <= cache.limit.bytes) {
      Cache::Shelf& shelf = cache.shelf[size_class];
      try {
        shelf.blocks.push_back(data);
        shelf.used = ++cache.clock;
        cache.cached += size;
        data = nullptr;
        if (cache.cached > cache.limit.bytes) cache.evict(cache.limit.bytes);
      } catch (const std::bad_alloc&) {  // no memory for the list's entry, so the block is freed
      }
    }
  }
  std::free(data);
}

}  // namespace pb

pb::cpu::CacheUse pb::cpu::cache_use() {
  Cache& cache = the_cache();
  std::lock_guard<std::mutex> lock(cache.mutex);
  return {cache.cached, cache.limit.bytes, cache.limit.source};
}

int64_t pb::cpu::trim_cache() {
  Cache& cache = the_cache();
  int64_t bytes = 0;
  {
    std::lock_guard<std::mutex> lock(cache.mutex);
    bytes = cache.cached;
    cache.evict(0);
  }
  return_free_pages();
  return bytes;
}

int64_t pb::live_bytes() { return live.load(std::memory_order_relaxed); }
