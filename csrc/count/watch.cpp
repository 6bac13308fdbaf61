// Implements watch.h. Kernels are compiled as for the thread sanitizer, so every memory access of theirs calls one of the functions
// at the end of this file.
#include "count/watch.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "count/number.h"

namespace pb::count {
namespace {

std::atomic<int64_t> adds, multiplies, fmas, special_ops;

enum : uint8_t { kElement = 1, kRead = 2, kWritten = 4 };

// A contiguous piece of memory that holds operands, with the flags of each of its bytes.
struct Region {
  uintptr_t begin, end;
  std::vector<std::atomic<uint8_t>> bytes;

  Region(uintptr_t begin, uintptr_t end) : begin(begin), end(end), bytes(end - begin) {}
};
std::vector<Region> regions;  // sorted by address; they stay until the next watch() replaces or clears them
std::atomic<bool> watching;

template <class F> void each_element(const View& v, int axis, uintptr_t at, const F& f) {
  if (axis == v.ndim) return f(at);
  for (int64_t i = 0; i < v.shape[axis]; ++i) each_element(v, axis + 1, at + uintptr_t(i * v.stride[axis]), f);
}

struct Extent {
  uintptr_t begin, end;
};
Extent extent_of(const View& v) {
  Extent e{UINTPTR_MAX, 0};
  each_element(v, 0, uintptr_t(v.data), [&](uintptr_t at) {
    e.begin = std::min(e.begin, at), e.end = std::max(e.end, at + uintptr_t(item_size(v.dtype)));
  });
  return e;
}

Region* region_of(uintptr_t address) {
  const auto after = std::upper_bound(regions.begin(), regions.end(), address,
                                      [](uintptr_t a, const Region& region) { return a < region.end; });
  return after != regions.end() && after->begin <= address ? &*after : nullptr;
}

void touch(const void* data, size_t size, uint8_t how) {
  if (!watching.load(std::memory_order_relaxed)) return;
  for (uintptr_t at = uintptr_t(data), end = at + size; at < end; ++at)
    if (Region* region = region_of(at)) {
      std::atomic<uint8_t>& byte = region->bytes[at - region->begin];
      if (how == kWritten || !(byte.load(std::memory_order_relaxed) & kWritten)) byte.fetch_or(how, std::memory_order_relaxed);
    }
}

}  // namespace

void note_add() { adds.fetch_add(1, std::memory_order_relaxed); }
void note_multiply() { multiplies.fetch_add(1, std::memory_order_relaxed); }
void note_fused() { fmas.fetch_add(1, std::memory_order_relaxed); }
void note_special() { special_ops.fetch_add(1, std::memory_order_relaxed); }

void watch(const Launch& launch) {
  std::vector<Extent> extents;
  for (int k = 0; k < launch.outputs + launch.inputs; ++k)
    if (launch.operands[k].data && launch.operands[k].size()) extents.push_back(extent_of(launch.operands[k]));
  std::sort(extents.begin(), extents.end(), [](Extent a, Extent b) { return a.begin < b.begin; });
  std::vector<Extent> joined;
  for (const Extent& e : extents) {
    if (joined.empty() || e.begin > joined.back().end) joined.push_back(e);
    else joined.back().end = std::max(joined.back().end, e.end);
  }
  regions.clear();
  for (const Extent& e : joined) regions.emplace_back(e.begin, e.end);
  for (int k = 0; k < launch.outputs + launch.inputs; ++k) {
    const View& v = launch.operands[k];
    if (!v.data) continue;
    each_element(v, 0, uintptr_t(v.data), [&](uintptr_t at) {
      Region* region = region_of(at);
      for (int b = 0; b < item_size(v.dtype); ++b) region->bytes[at + uintptr_t(b) - region->begin] |= kElement;
    });
  }
  adds = multiplies = fmas = special_ops = 0;
  watching = true;
}

void watch() {
  regions.clear();
  adds = multiplies = fmas = special_ops = 0;
}

Seen seen() {
  watching = false;
  Seen counted{adds, multiplies, fmas, special_ops, 0, 0};
  for (const Region& region : regions)
    for (const auto& byte : region.bytes) {
      if (!(byte & kElement)) continue;
      counted.bytes_read += (byte & kRead) != 0;
      counted.bytes_written += (byte & kWritten) != 0;
    }
  return counted;
}

}  // namespace pb::count

using pb::count::kRead;
using pb::count::kWritten;
using pb::count::touch;

extern "C" {

#define PB_ACCESS(size)                                                      \
  void __tsan_read##size(void* data) { touch(data, size, kRead); }           \
  void __tsan_write##size(void* data) { touch(data, size, kWritten); }       \
  void __tsan_unaligned_read##size(void* data) { touch(data, size, kRead); } \
  void __tsan_unaligned_write##size(void* data) { touch(data, size, kWritten); }
PB_ACCESS(1)
PB_ACCESS(2)
PB_ACCESS(4)
PB_ACCESS(8)
PB_ACCESS(16)
void __tsan_read_range(void* data, size_t size) { touch(data, size, kRead); }
void __tsan_write_range(void* data, size_t size) { touch(data, size, kWritten); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_init() {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#define PB_ATOMIC(bits, type)                                                                                \
  type __tsan_atomic##bits##_load(const volatile type* at, int) {                                            \
    touch(const_cast<type*>(at), sizeof(type), kRead);                                                       \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                            \
  }                                                                                                          \
  void __tsan_atomic##bits##_store(volatile type* at, type x, int) {                                         \
    touch(const_cast<type*>(at), sizeof(type), kWritten);                                                    \
    __atomic_store_n(at, x, __ATOMIC_SEQ_CST);                                                               \
  }                                                                                                          \
  type __tsan_atomic##bits##_fetch_add(volatile type* at, type x, int) {                                     \
    touch(const_cast<type*>(at), sizeof(type), kRead), touch(const_cast<type*>(at), sizeof(type), kWritten); \
    return __atomic_fetch_add(at, x, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                          \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* was, type x, int, int) {       \
    touch(const_cast<type*>(at), sizeof(type), kRead), touch(const_cast<type*>(at), sizeof(type), kWritten); \
    return __atomic_compare_exchange_n(at, was, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
  }                                                                                                          \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* was, type x, int a, int b) {     \
    return __tsan_atomic##bits##_compare_exchange_strong(at, was, x, a, b);                                  \
  }
PB_ATOMIC(8, char)
PB_ATOMIC(16, short)
PB_ATOMIC(32, int)
PB_ATOMIC(64, long)

void* __real_memcpy(void* to, const void* from, size_t size);
void* __real_memmove(void* to, const void* from, size_t size);
void* __real_memset(void* to, int byte, size_t size);
void* __wrap_memcpy(void* to, const void* from, size_t size) {
  touch(from, size, kRead), touch(to, size, kWritten);
  return __real_memcpy(to, from, size);
}
void* __wrap_memmove(void* to, const void* from, size_t size) {
  touch(from, size, kRead), touch(to, size, kWritten);
  return __real_memmove(to, from, size);
}
void* __wrap_memset(void* to, int byte, size_t size) {
  touch(to, size, kWritten);
  return __real_memset(to, byte, size);
}
}
