// Defines the memory of dynamic shared variables, which every OS thread has a copy of, and poisons shared memory.
#include "cudasim/shared.h"

#include <cstring>

#include "cudasim/symbols.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

alignas(128) thread_local unsigned char pb_shared[cudasim::kMaxShared];

namespace cudasim {

void poison_shared(const void* kernel, size_t dynamic) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(pb_shared, kMaxShared);
#endif
  std::memset(pb_shared, 0xff, dynamic);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(pb_shared + dynamic, kMaxShared - dynamic);
#else
  constexpr size_t kBeyond = 256;  // bytes of padding filled with NaN, so that a read just past the end returns NaN
  std::memset(pb_shared + dynamic, 0xff, dynamic + kBeyond <= kMaxShared ? kBeyond : kMaxShared - dynamic);
#endif
  for (const MemoryRange& range : shared_variables(kernel)) std::memset(range.begin, 0xff, range.bytes);
}

}  // namespace cudasim
