// Memory of the arrays that kernels work on; each module of kernels brings its own.
#pragma once
#include <cstddef>

namespace pb::kernels {

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
  int device = 0;
};

// At least `bytes` bytes, aligned to 64, uninitialised. Throws std::bad_alloc, or what derives from it. Any thread.
Block allocate(size_t bytes);
// Gives back what allocate returned, to be used after the work that was launched on it before. Any thread.
void release(const Block& block) noexcept;

}  // namespace pb::kernels
