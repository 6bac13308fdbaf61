// Allocations and copies. Freed memory is quarantined: a read from it returns NaN, and a write to it is detected.
#include "cudasim/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "cudasim/atomics.h"
#include "cudasim/block.h"
#include "cudasim/graph.h"

namespace cudasim {
namespace {

constexpr size_t kAlign = 256;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kFence = 0, kKept = 0;  // the sanitizer has its own fences and its own quarantine
#else
constexpr size_t kFence = 256;      // bytes before and after every allocation that must not change
constexpr size_t kKept = 32 << 20;  // the most bytes of freed memory in quarantine
#endif
constexpr unsigned char kPoison = 0xff;

struct Allocation {
  size_t bytes;
  cudaMemoryType type;
};

struct Heap {
  std::mutex mutex;
  std::map<char*, Allocation> live;
  std::deque<std::pair<char*, size_t>> freed;
  size_t device_bytes = 0, freed_bytes = 0;
};
using HeapLock = std::lock_guard<std::mutex>;

Heap& heap() {
  static Heap& all = *new Heap;
  return all;
}

// Returns the size of the device's memory: CUDASIM_BYTES, which is read at every allocation, or 16 GiB.
size_t device_bytes() {
  const char* text = std::getenv("CUDASIM_BYTES");
  return text && *text ? std::strtoull(text, nullptr, 10) : size_t{16} << 30;
}

bool poisoned(const char* p, size_t bytes) {
  return std::all_of(p, p + bytes, [](char c) { return static_cast<unsigned char>(c) == kPoison; });
}

void check_fences(const char* p, size_t bytes) {
  if (!poisoned(p - kFence, kFence)) fail("something wrote before the beginning of an allocation of %zu bytes", bytes);
  if (!poisoned(p + bytes, kFence)) fail("something wrote beyond the end of an allocation of %zu bytes", bytes);
}

cudaError_t allocate(void** p, size_t bytes, cudaMemoryType type) {
  if (!p) return report(cudaErrorInvalidValue);
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  Heap& h = heap();
  const HeapLock lock(h.mutex);
  if (type == cudaMemoryTypeDevice && h.device_bytes + bytes > device_bytes()) return report(cudaErrorMemoryAllocation);
  char* memory = static_cast<char*>(::operator new(bytes + 2 * kFence, std::align_val_t{kAlign}, std::nothrow));
  if (!memory) return report(cudaErrorMemoryAllocation);
  std::memset(memory, kPoison, bytes + 2 * kFence);
  h.live[memory + kFence] = {bytes, type};
  if (type == cudaMemoryTypeDevice) h.device_bytes += bytes;
  *p = memory + kFence;
  return cudaSuccess;
}

void give_back(Heap& h) {
  const auto [p, bytes] = h.freed.front();
  h.freed.pop_front();
  h.freed_bytes -= bytes;
  if (!poisoned(p, bytes)) fail("something wrote to an allocation of %zu bytes after it was freed", bytes);
  check_fences(p, bytes);
  ::operator delete(p - kFence, std::align_val_t{kAlign});
}

cudaError_t release(void* p) {
  Heap& h = heap();
  const HeapLock lock(h.mutex);
  const auto at = h.live.find(static_cast<char*>(p));
  if (at == h.live.end() || at->second.type != cudaMemoryTypeDevice) return report(cudaErrorInvalidValue);
  const size_t bytes = at->second.bytes;
  h.device_bytes -= bytes;
  h.live.erase(at);
  check_fences(static_cast<char*>(p), bytes);
  std::memset(p, kPoison, bytes);
  h.freed.emplace_back(static_cast<char*>(p), bytes);
  h.freed_bytes += bytes;
  while (h.freed_bytes > kKept && !h.freed.empty()) give_back(h);
  return cudaSuccess;
}

// Returns the live allocation that p points into, or null if there is none. The caller holds the mutex.
const std::pair<char* const, Allocation>* allocation_of(const void* p) {
  const auto& live = heap().live;
  auto at = live.upper_bound(const_cast<char*>(static_cast<const char*>(p)));
  if (at == live.begin()) return nullptr;
  --at;
  return static_cast<const char*>(p) < at->first + at->second.bytes ? &*at : nullptr;
}

// True if the `bytes` bytes from p on lie in one allocation. If p is in no allocation, it is plain memory of the host, whose bounds
// are not checked: true unless `device`.
bool in_bounds(const void* p, size_t bytes, bool device) {
  const HeapLock lock(heap().mutex);
  const auto* at = allocation_of(p);
  if (!at) return !device;
  return static_cast<const char*>(p) + bytes <= at->first + at->second.bytes;
}

bool on_device(const void* p) {
  const HeapLock lock(heap().mutex);
  const auto* at = allocation_of(p);
  return at && at->second.type == cudaMemoryTypeDevice;
}

bool in_an_allocation(const void* p) {
  const HeapLock lock(heap().mutex);
  return allocation_of(p) != nullptr;
}

bool captures(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  (void)cudaStreamIsCapturing(stream, &status);
  return status != cudaStreamCaptureStatusNone;
}

cudaError_t check_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return report(cudaErrorInvalidMemcpyDirection);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (!in_bounds(to, bytes, to_device) || !in_bounds(from, bytes, from_device)) return report(cudaErrorInvalidValue);
  if (kind != cudaMemcpyDefault && ((!to_device && on_device(to)) || (!from_device && on_device(from)))) {
    return report(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

// Submits the work to the legacy stream and waits for it, as the CUDA calls without a stream do.
cudaError_t submit_and_wait(Work work) {
  if (const cudaError_t error = not_while_capturing()) return error;
  if (const cudaError_t error = submit(nullptr, std::move(work))) return error;
  return cudaStreamSynchronize(nullptr);
}

}  // namespace

}  // namespace cudasim

using cudasim::report;
using cudasim::WorkKind;

cudaError_t cudaMalloc(void** p, size_t bytes) {
  if (const cudaError_t error = cudasim::injected("cudaMalloc")) return error;
  if (const cudaError_t error = cudasim::not_while_capturing()) return error;
  return cudasim::allocate(p, bytes, cudaMemoryTypeDevice);
}

// Waits for the device, as the real cudaFree does.
cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  if (const cudaError_t error = cudaDeviceSynchronize()) return error;
  return cudasim::release(p);
}

cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t) {
  if (const cudaError_t error = cudasim::not_while_capturing()) return error;
  return cudasim::allocate(p, bytes, cudaMemoryTypeDevice);
}

cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  if (!p) return cudaSuccess;
  if (!cudasim::on_device(p)) return report(cudaErrorInvalidValue);
  if (const cudaError_t error = cudasim::not_while_capturing()) return error;
  return cudasim::submit(stream, {WorkKind::kEmpty, [=] { cudasim::release(p); }, nullptr});
}

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  if (const cudaError_t error = cudasim::not_while_capturing()) return error;
  return cudasim::allocate(p, bytes, cudaMemoryTypeHost);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (!free || !total) return report(cudaErrorInvalidValue);
  const cudasim::HeapLock lock(cudasim::heap().mutex);
  const size_t used = cudasim::heap().device_bytes;
  *total = cudasim::device_bytes();
  *free = *total > used ? *total - used : 0;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  if (!attributes) return report(cudaErrorInvalidValue);
  const cudasim::HeapLock lock(cudasim::heap().mutex);
  const auto* at = cudasim::allocation_of(p);
  void* pointer = const_cast<void*>(p);
  *attributes = {at ? at->second.type : cudaMemoryTypeUnregistered, 0, at ? pointer : nullptr, nullptr};
  if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = pointer;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = cudasim::check_copy(to, from, bytes, kind)) return error;
  return cudasim::submit_and_wait({WorkKind::kMemcpy, [=] { std::memmove(to, from, bytes); }, nullptr});
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = cudasim::check_copy(to, from, bytes, kind)) return error;
  const void* source = from;
  std::shared_ptr<char[]> staged;  // a copy of the source, because CUDA reads pageable host memory before the call returns
  if (bytes && cudasim::on_device(to) && !cudasim::in_an_allocation(from) && !cudasim::captures(stream)) {
    staged.reset(new char[bytes]);
    source = std::memcpy(staged.get(), from, bytes);
  }
  return cudasim::submit(stream, {WorkKind::kMemcpy, [=] { std::memmove(to, source, bytes), (void)staged; }, nullptr});
}

cudaError_t cudaMemset(void* p, int byte, size_t bytes) {
  if (const cudaError_t error = cudasim::not_while_capturing()) return error;
  return cudaMemsetAsync(p, byte, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* p, int byte, size_t bytes, cudaStream_t stream) {
  if (!cudasim::in_bounds(p, bytes, bytes > 0)) return report(cudaErrorInvalidValue);
  return cudasim::submit(stream, {WorkKind::kMemset, [=] { std::memset(p, byte, bytes); }, nullptr});
}
