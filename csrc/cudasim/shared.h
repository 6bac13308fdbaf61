// Shared memory: the dynamic part, and the poisoning of the dynamic and the static part when a block begins.
#pragma once

#include <cstddef>

#include "cudasim/language.h"

// Dynamic shared memory has one name and one type in all kernels. Its size is that of an H100.
extern thread_local unsigned char pb_shared[];

namespace cudasim {

constexpr size_t kMaxShared = 227 << 10;          // bytes per block
constexpr size_t kSharedWithoutOptIn = 48 << 10;  // bytes per block; more dynamic memory needs cudaFuncSetAttribute

// Fills the shared memory of this OS thread's next block with NaN. Under an address sanitizer, also makes every access to dynamic
// shared memory beyond `dynamic` bytes an error.
void poison_shared(const void* kernel, size_t dynamic);

}  // namespace cudasim
