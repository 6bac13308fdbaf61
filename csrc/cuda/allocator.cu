// Allocates the device's memory. A released block is kept and can be handed out again at once: everything runs on one stream, so
// the work of the block's previous owner is done before the work of the next one begins. Memory that another library may still be
// using on a different stream is released here only after that stream has passed the last use (python/pullback/tensors/leases.py).
//
// The cache holds at most PULLBACK_CUDA_CACHE_BYTES. The default limit is 256 MiB more than the peak of the memory in use. A
// program whose steps are alike never comes near that limit, and a program whose shapes keep changing does not fill the device with
// blocks of sizes it no longer uses.
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/graph_memory.h"
#include "cuda/launch.cuh"
#include "launch/memory.h"

namespace pb::cuda {
namespace {

constexpr size_t kAlign = 512;
constexpr size_t kSpare = size_t{256} << 20;
#if defined(__CUDACC__)
constexpr int64_t kDefaultLimit = -1;  // the limit follows the peak
#else
// The simulator caches nothing, because it fills fresh memory with NaN and checks the ends of blocks.
constexpr int64_t kDefaultLimit = 0;
#endif

// Returns the number of bytes that the cache may hold, or -1 if the limit follows the peak.
int64_t fixed_limit() {
  static const int64_t limit = [] {
    const char* text = std::getenv("PULLBACK_CUDA_CACHE_BYTES");
    char* end = nullptr;
    const long long bytes = text ? std::strtoll(text, &end, 10) : -1;
    return text && end != text && bytes >= 0 ? int64_t(bytes) : kDefaultLimit;
  }();
  return limit;
}
bool keeps() { return fixed_limit() != 0; }

// Rounds a size up to a multiple of 512 bytes, and a size of more than 8 KiB to a multiple of a larger power of two. Blocks of more
// than 4 KiB are at most 12.5 % larger than requested.
size_t rounded(size_t bytes) {
  size_t step = kAlign;
  while (step * 16 < bytes) step *= 2;
  return bytes == 0 ? kAlign : (bytes + step - 1) / step * step;
}

std::atomic<int64_t> allocations{0}, releases{0};  // calls of the driver

// Gives memory back to the driver.
void give_back(void* data) {
  releases.fetch_add(1, std::memory_order_relaxed);
  (void)cudaFree(data);
}

struct Pool {
  struct Shelf {  // free blocks of one size
    std::vector<void*> blocks;
    uint64_t used = 0;  // time on the pool's clock at which a block was last taken or put back
  };
  std::map<size_t, Shelf> shelves;
  uint64_t clock = 0;
  size_t live = 0, cached = 0, peak = 0;
  size_t of[kHolders] = {};

  size_t limit() const { return fixed_limit() >= 0 ? size_t(fixed_limit()) : peak + kSpare; }
  void count(size_t size, Holder holder) {
    live += size, of[int(holder)] += size;
    if (live > peak) peak = live;
  }
  void* take(size_t size) {
    const auto found = shelves.find(size);
    if (found == shelves.end() || found->second.blocks.empty()) return nullptr;
    void* data = found->second.blocks.back();
    found->second.blocks.pop_back();
    found->second.used = ++clock;
    cached -= size;
    return data;
  }
  void put(void* data, size_t size) {
    Shelf& shelf = shelves[size];
    shelf.blocks.push_back(data);
    shelf.used = ++clock;
    cached += size;
    if (cached > limit()) shrink(limit() / 4 * 3);  // shrinks well below the limit, because each cudaFree waits for the device
  }
  // Frees blocks, those of the least recently used sizes first, until at most `most` bytes are cached.
  void shrink(size_t most) {
    while (cached > most) {
      auto oldest = shelves.end();
      for (auto at = shelves.begin(); at != shelves.end(); ++at)
        if (!at->second.blocks.empty() && (oldest == shelves.end() || at->second.used < oldest->second.used)) oldest = at;
      if (oldest == shelves.end()) return;
      give_back(oldest->second.blocks.back());
      oldest->second.blocks.pop_back();
      cached -= oldest->first;
      if (oldest->second.blocks.empty()) shelves.erase(oldest);
    }
  }
};
struct Pools {
  std::mutex mutex;
  Pool of[kMaxDevices];
};
// The pools are never destroyed, because arrays may be released while the process ends. The fork handlers hold the lock across a
// fork, so that a child never inherits it locked by another thread.
Pools& pools() {
  static Pools* const all = [] {
    static Pools* made = new Pools;
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); }, [] { made->mutex.unlock(); });
    return made;
  }();
  return *all;
}
Pool& own_pool() { return pools().of[current_device()]; }

std::atomic<void (*)()> release_elsewhere{nullptr};

std::string in_mebibytes(size_t bytes) {
  const size_t tenths = (bytes * 10 + (size_t{1} << 19)) >> 20;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MiB";
}

[[noreturn]] void no_room(size_t bytes) {
  const MemoryUse use = memory_use();
  throw OutOfMemory("GPU " + std::to_string(current_device()) + " has no memory for it: " + in_mebibytes(bytes) +
                    " were asked for, " + in_mebibytes(use.live) + " are in use by pullback's tensors, and " +
                    in_mebibytes(use.free) + " of " + in_mebibytes(use.total) +
                    " are free. Tensors that exist stay valid. Make batches smaller, or drop tensors (a tape keeps "
                    "what its backward pass needs).");
}

// Returns new memory from the driver, or null if the device is full.
void* fresh(size_t bytes) {
  const BesideCaptures allowed;
  void* data = nullptr;
  // CudaMallocAsync would make the allocation part of the graph that is being captured.
  const bool waits = keeps() || GraphMemory::current;
  allocations.fetch_add(1, std::memory_order_relaxed);
  const cudaError_t error = waits ? cudaMalloc(&data, bytes) : cudaMallocAsync(&data, bytes, stream());
  if (error == cudaSuccess) return data;
  (void)cudaGetLastError();
  if (error != cudaErrorMemoryAllocation) fail(error, "allocating memory");
  return nullptr;
}

// Frees pullback's cache first, and then memory that other libraries keep for later, such as CuPy's pool.
void* fresh_after_making_room(size_t bytes) {
  (void)trim();
  if (void* data = fresh(bytes)) return data;
  // A release by another library waits for the device, which would end a capture on this thread.
  if (void (*release)() = GraphMemory::current ? nullptr : release_elsewhere.load()) {
    release();
    (void)trim();
    if (void* data = fresh(bytes)) return data;
  }
  return nullptr;
}

}  // namespace

size_t trim() {
  (void)stream();
  const BesideCaptures allowed;
  const std::lock_guard<std::mutex> lock(pools().mutex);
  Pool& pool = own_pool();
  const size_t before = pool.cached;
  pool.shrink(0);
  return before - pool.cached;
}

void free_memory_by(void (*release)()) { release_elsewhere = release; }

MemoryUse memory_use() {
  MemoryUse use{};
  if (cudaMemGetInfo(&use.free, &use.total) != cudaSuccess) (void)cudaGetLastError();
  const std::lock_guard<std::mutex> lock(pools().mutex);
  const Pool& pool = own_pool();
  use.live = pool.live, use.cached = pool.cached, use.peak = pool.peak;
  for (int k = 0; k < kHolders; ++k) use.of[k] = pool.of[k];
  return use;
}

DriverCalls driver_calls() { return {allocations, releases}; }

void reset_peak() {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  own_pool().peak = own_pool().live;
}

thread_local GraphMemory* GraphMemory::current = nullptr;

Allocation working_memory(size_t bytes) {
  return GraphMemory::current ? GraphMemory::current->take(bytes) : pb::allocate(bytes, Holder::scratch);
}
void give_back_working_memory(const Allocation& block) {
  if (GraphMemory::current) GraphMemory::current->give_back(block);
  else pb::release(block);
}

Scratch::~Scratch() {
  for (int k = 0; k < count_; ++k) give_back_working_memory(pieces_[k]);
}
void* Scratch::take_bytes(size_t bytes) {
  if (count_ == kMaxPieces) throw Failure("too many pieces of working memory");
  pieces_[count_] = working_memory(bytes);
  return pieces_[count_++].data;
}

}  // namespace pb::cuda

namespace pb {

using namespace cuda;

Allocation allocate(size_t bytes, Holder holder) {
  const size_t size = keeps() ? rounded(bytes) : (bytes ? bytes : 1);
  (void)stream();  // makes the device ready and current
  Pool& pool = own_pool();
  const auto block = [&](void* data) { return Allocation{data, size, current_device(), holder}; };
  {
    const std::lock_guard<std::mutex> lock(pools().mutex);
    if (void* data = pool.take(size)) {
      pool.count(size, holder);
      return block(data);
    }
  }
  void* data = fresh(size);  // called without the lock, because memory that other libraries release may come back to this pool
  if (!data) data = fresh_after_making_room(size);
  if (!data) no_room(bytes);
  const std::lock_guard<std::mutex> lock(pools().mutex);
  pool.count(size, holder);
  return block(data);
}

void release(const Allocation& block) noexcept {
  if (!block.data || !usable()) return;  // a forked child cannot use its parent's device memory
  const std::lock_guard<std::mutex> lock(pools().mutex);
  Pool& pool = pools().of[block.device];
  pool.live -= block.bytes, pool.of[int(block.holder)] -= block.bytes;
  const BesideCaptures allowed;
  try {
    if (keeps()) return pool.put(block.data, block.bytes);
#if !defined(__CUDACC__)
    releases.fetch_add(1, std::memory_order_relaxed);
    return (void)cudaFreeAsync(block.data, stream());
#endif
  } catch (const std::exception&) {  // the pool has no host memory to record the block, so it is freed below
  }
  give_back(block.data);
}

}  // namespace pb

int64_t pb::live_bytes() {
  const std::lock_guard<std::mutex> lock(cuda::pools().mutex);
  return int64_t(cuda::own_pool().live);
}
