// Memory of the arrays that kernels work on; each module of kernels brings its own.
#pragma once
#include <cstddef>

namespace pb::kernels {

// At least `bytes` bytes, aligned to 64, uninitialised. Throws std::bad_alloc, or what else derives from it. Any thread.
void* allocate(size_t bytes);
// Gives back what allocate(bytes) returned; work that was launched on it before is done first. Null is ignored. Any thread.
void release(void* data, size_t bytes) noexcept;

}  // namespace pb::kernels
