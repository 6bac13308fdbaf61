// The allocator for the memory of kernels. Each backend defines it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>

namespace pb {

// Returns the product of lengths, which are not negative. Throws std::bad_alloc if it exceeds int64, because no memory is that large.
template <class... N> int64_t elements_of(N... lengths) {
  int64_t count = 1;
  if ((... || __builtin_mul_overflow(count, int64_t(lengths), &count)) || count < 0) throw std::bad_alloc();
  return count;
}

// The kinds of owners that reports of memory distinguish.
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

// Returns at least `bytes` uninitialised bytes, aligned to 64 bytes. Throws std::bad_alloc, or an exception that derives from it.
// Any thread may call it.
Allocation allocate(size_t bytes, Holder holder = Holder::arrays);
// Frees an allocation. Its memory is reused only after the work launched on it so far. Any thread may call it.
void release(const Allocation& allocation) noexcept;

}  // namespace pb
