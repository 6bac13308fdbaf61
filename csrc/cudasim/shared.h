// Shared memory: the dynamic part, and poison for both parts where a block begins.
#pragma once

#include <cstddef>

#include "cudasim/language.h"

// Dynamic shared memory has one name and one type in all kernels. The size is that of an H100.
extern thread_local unsigned char pb_shared[];

namespace cudasim {

constexpr size_t kMaxShared = 227 << 10;
constexpr size_t kSharedWithoutOptIn = 48 << 10;  // more dynamic memory needs cudaFuncSetAttribute

// Makes what this OS thread's next block of the kernel finds in shared memory NaN, and stops accesses to dynamic memory
// beyond `dynamic` bytes where an address sanitizer watches.
void poison_shared(const void* kernel, size_t dynamic);

}  // namespace cudasim
