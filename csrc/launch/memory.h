// The allocator of the memory that kernels work on; each backend defines it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace pb {

// The owners of memory that reports tell apart.
enum class Holder : uint8_t {
  arrays,
  recordings,  // temporaries of captured functions, and copies of their arguments
  graphs,      // working memory and slots of CUDA graphs
  scratch,     // working memory of single launches, and of libraries
};
constexpr int kHolders = 4;

struct Allocation {
  void* data = nullptr;
  size_t bytes = 0;
  int device = 0;
  Holder holder = Holder::arrays;
};

// Returns at least `bytes` bytes, aligned to 64, uninitialised. Throws std::bad_alloc, or an exception that derives from it. Any
// thread may call it.
Allocation allocate(size_t bytes, Holder holder = Holder::arrays);
// Frees what allocate returned. It is reused only after the work that was launched on it before. Any thread may call it.
void release(const Allocation& allocation) noexcept;

}  // namespace pb
