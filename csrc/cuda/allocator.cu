// The device's memory. Blocks are kept when they are released, and given out again at once: everything runs on one stream, so
// the work of their last owner is done before that of the next.
#include <map>
#include <mutex>
#include <vector>

#include "cuda/graph_memory.h"
#include "cuda/launch.cuh"
#include "kernels/memory.h"

namespace pb::cuda {
namespace {

constexpr size_t kAlign = 512;
#if defined(__CUDACC__)
constexpr bool kKeeps = true;
#else
constexpr bool kKeeps = false;  // the simulator fills fresh memory with NaN, and watches the ends of blocks
#endif

// Sizes of one in eight: at most 12.5 % more than was asked for.
size_t rounded(size_t bytes) {
  size_t step = kAlign;
  while (step * 16 < bytes) step *= 2;
  return bytes == 0 ? kAlign : (bytes + step - 1) / step * step;
}

struct Pool {
  std::map<size_t, std::vector<void*>> blocks;
  size_t used = 0, cached = 0;
};
struct Pools {
  std::mutex mutex;
  Pool of[kMaxDevices];
};
// Never destroyed: arrays may be released while the process ends.
Pools& pools() {
  static Pools* const all = new Pools;
  return *all;
}

void give_back(Pool& pool) {
  for (auto& [size, blocks] : pool.blocks) {
    for (void* block : blocks) (void)cudaFree(block);
    pool.cached -= size * blocks.size();
  }
  pool.blocks.clear();
}

std::string in_mebibytes(size_t bytes) {
  const size_t tenths = (bytes * 10 + (size_t{1} << 19)) >> 20;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " MiB";
}

[[noreturn]] void no_room(size_t bytes) {
  const MemoryUse use = memory_use();
  throw kernels::OutOfMemory("GPU " + std::to_string(current_device()) + " has no memory for it: " + in_mebibytes(bytes) +
                             " were asked for, " + in_mebibytes(use.used) + " are in use by pullback's tensors, and " +
                             in_mebibytes(use.free) + " of " + in_mebibytes(use.total) +
                             " are free. Tensors that exist stay valid. Make batches smaller, or drop tensors (a tape keeps "
                             "what its backward pass needs).");
}

void* fresh(size_t bytes) {
  void* data = nullptr;
  // A graph that is being made has no place for the allocation.
  const bool waits = kKeeps || GraphMemory::current;
  const cudaError_t error = waits ? cudaMalloc(&data, bytes) : cudaMallocAsync(&data, bytes, stream());
  if (error == cudaSuccess) return data;
  (void)cudaGetLastError();
  if (error != cudaErrorMemoryAllocation) fail(error, "allocating memory");
  return nullptr;
}

}  // namespace

void trim() {
  Pools& all = pools();
  const std::lock_guard<std::mutex> lock(all.mutex);
  (void)stream();
  give_back(all.of[current_device()]);
}

MemoryUse memory_use() {
  MemoryUse use{};
  (void)cudaMemGetInfo(&use.free, &use.total);
  const Pool& pool = pools().of[current_device()];
  use.used = pool.used, use.cached = pool.cached;
  return use;
}

thread_local GraphMemory* GraphMemory::current = nullptr;

kernels::Block working_memory(size_t bytes) {
  return GraphMemory::current ? GraphMemory::current->take(bytes) : kernels::allocate(bytes);
}
void give_back_working_memory(const kernels::Block& block) {
  if (GraphMemory::current) GraphMemory::current->give_back(block);
  else kernels::release(block);
}

Scratch::~Scratch() {
  for (int k = 0; k < count_; ++k) give_back_working_memory(pieces_[k]);
}
void* Scratch::take_bytes(size_t bytes) {
  if (count_ == kMaxPieces) throw kernels::Failure("too many pieces of working memory");
  pieces_[count_] = working_memory(bytes);
  return pieces_[count_++].data;
}

}  // namespace pb::cuda

namespace pb::kernels {

using namespace cuda;

Block allocate(size_t bytes) {
  const size_t size = kKeeps ? rounded(bytes) : (bytes ? bytes : 1);
  (void)stream();  // the device is ready, and current
  Pools& all = pools();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Pool& pool = all.of[current_device()];
  const auto found = pool.blocks.find(size);
  void* data = nullptr;
  if (found != pool.blocks.end() && !found->second.empty()) {
    data = found->second.back();
    found->second.pop_back();
    pool.cached -= size;
  } else if (!(data = fresh(size))) {
    give_back(pool);
    if (!(data = fresh(size))) no_room(bytes);
  }
  pool.used += size;
  return {data, size, current_device()};
}

void release(const Block& block) noexcept {
  if (!block.data) return;
  Pools& all = pools();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Pool& pool = all.of[block.device];
  pool.used -= block.bytes;
  try {
    if (kKeeps) {
      pool.blocks[block.bytes].push_back(block.data);
      pool.cached += block.bytes;
      return;
    }
    (void)cudaFreeAsync(block.data, stream());
  } catch (const std::exception&) {  // no room to remember it: then not
    (void)cudaFree(block.data);
  }
}

}  // namespace pb::kernels

int64_t pb::live_bytes() { return int64_t(cuda::pools().of[cuda::current_device()].used); }
