// Finds accesses of shared memory by different threads of a block, at least one of them a write, that no barrier orders. Two writes
// of the same value are found too, as compute-sanitizer's racecheck does.
//
// Kernels are compiled with -fsanitize=thread, and then call one of the functions below at each access. The simulator is compiled
// with -DCUDASIM_RACES, and without that sanitizer, whose library is not linked.
#if defined(CUDASIM_RACES)
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cudasim/block.h"
#include "cudasim/shared.h"
#include "cudasim/symbols.h"

namespace cudasim {
namespace {

struct Access {
  uint64_t barriers = 0, meetings = 0;  // before it, of the block and of the thread's warp; 0 barriers: there was no access
  unsigned thread = 0;
  void* code = nullptr;  // where it is
};

// Returns the address of code for addr2line.
std::string place_of(void* code) {
  Dl_info info{};
  if (!dladdr(code, &info)) return "?";
  char text[32];
  std::snprintf(text, sizeof text, " 0x%zx", size_t(static_cast<char*>(code) - static_cast<char*>(info.dli_fbase)) - 1);
  return info.dli_fname + std::string(text);
}

// The last accesses of each byte of the shared memory of one OS thread.
class Races {
 public:
  void see(uintptr_t address, size_t bytes, bool writes, void* code) {
    if (!Block::runs()) return;
    const Block& block = Block::running();
    if (block.call().kernel != kernel_) begin(block.call().kernel);
    const uintptr_t first = address - begin_;
    if (first >= bytes_.size()) return;
    const Access now{block.barriers(), block.meetings(), block.thread(), code};
    for (size_t k = first; k < std::min(first + bytes, bytes_.size()) && bytes_[k].shared; ++k) {
      Byte& byte = bytes_[k];
      check(byte.write, now, writes ? "write after write" : "read after write");
      if (writes) check(byte.read, now, "write after read");
      if (writes) byte.write = now;
      else if (!meets(byte.read, now)) byte.read = now;  // of several readers the first is as good as another
    }
  }

 private:
  struct Byte {
    bool shared = false;
    Access write, read;
  };

  void begin(const void* kernel) {
    kernel_ = kernel;
    const std::vector<MemoryRange>& variables = shared_variables(kernel);
    const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
    uintptr_t first = address(pb_shared), end = first + kMaxShared;
    for (const MemoryRange& range : variables)
      first = std::min(first, address(range.begin)), end = std::max(end, address(range.begin) + range.bytes);
    begin_ = first, bytes_.assign(end - first, {});
    const auto share = [&](const void* p, size_t bytes) {
      for (size_t k = 0; k < bytes; ++k) bytes_[address(p) - begin_ + k].shared = true;
    };
    share(pb_shared, kMaxShared);
    for (const MemoryRange& range : variables) share(range.begin, range.bytes);
  }
  // True if no barrier orders two accesses of different threads.
  static bool meets(const Access& before, const Access& now) {
    if (before.barriers != now.barriers || before.thread == now.thread) return false;
    return before.thread / kWarp != now.thread / kWarp || before.meetings == now.meetings;
  }
  static void check(const Access& before, const Access& now, const char* what) {
    if (meets(before, now))
      fail("a race in shared memory, %s, with thread %u of the block: addr2line -e %s and %s", what, before.thread,
           place_of(now.code).c_str(), place_of(before.code).c_str());
  }

  const void* kernel_ = nullptr;
  uintptr_t begin_ = 0;
  std::vector<Byte> bytes_;
};

void see(const void* p, size_t bytes, bool writes, void* code) {
  static thread_local Races* const races = new Races;  // initialized, so that it is not taken for a shared variable
  races->see(reinterpret_cast<uintptr_t>(p), bytes, writes, code);
}

}  // namespace
}  // namespace cudasim

// What -fsanitize=thread calls. Atomic operations are not checked.
extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#define SEES(name, bytes)                                                                                   \
  void __tsan_read##name(void* p) { cudasim::see(p, bytes, false, __builtin_return_address(0)); }           \
  void __tsan_write##name(void* p) { cudasim::see(p, bytes, true, __builtin_return_address(0)); }           \
  void __tsan_unaligned_read##name(void* p) { cudasim::see(p, bytes, false, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##name(void* p) { cudasim::see(p, bytes, true, __builtin_return_address(0)); }
SEES(1, 1)
SEES(2, 2)
SEES(4, 4)
SEES(8, 8)
SEES(16, 16)
void __tsan_read_range(void* p, size_t bytes) { cudasim::see(p, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t bytes) { cudasim::see(p, bytes, true, __builtin_return_address(0)); }

#define ATOMIC(bits, T)                                                                                             \
  T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }           \
  void __tsan_atomic##bits##_store(volatile T* p, T x, int) { __atomic_store_n(p, x, __ATOMIC_SEQ_CST); }           \
  T __tsan_atomic##bits##_exchange(volatile T* p, T x, int) { return __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T x, int) { return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_sub(volatile T* p, T x, int) { return __atomic_fetch_sub(p, x, __ATOMIC_SEQ_CST); } \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* old, T x, int, int) {                        \
    return __atomic_compare_exchange_n(p, old, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                       \
  }                                                                                                                 \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* old, T x, int, int) {                          \
    return __atomic_compare_exchange_n(p, old, x, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                        \
  }
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

}  // extern "C"
#endif
