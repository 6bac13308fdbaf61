// Memory of the arrays that kernels work on; each module of kernels brings its own.
#pragma once
#include <cstddef>
#include <cstdint>

namespace pb::kernels {

// The owners of memory, which reports tell apart.
enum class Holder : uint8_t {
  arrays,
  recordings,  // temporaries of captured functions, and copies of what they are given
  graphs,      // working memory and slots of CUDA graphs
  scratch,     // working memory of single launches, and of libraries
};
constexpr int kHolders = 4;

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
  int device = 0;
  Holder holder = Holder::arrays;
};

// Returns at least `bytes` bytes, aligned to 64, uninitialised. Throws std::bad_alloc, or an exception that derives from it. Any
// thread may call it.
Block allocate(size_t bytes, Holder holder = Holder::arrays);
// Gives back what allocate returned, to be used after the work that was launched on it before. Any thread.
void release(const Block& block) noexcept;

}  // namespace pb::kernels
