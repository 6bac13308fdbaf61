// Working memory for one launch. Small blocks are on the stack, and others come from the caching allocator.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "launch/memory.h"

namespace pb::cpu {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (int k = 0; k < blocks_; ++k) pb::release(block_[k]);
  }

  // Returns uninitialised memory for as many elements as the product of the lengths, aligned to a cache line. It is valid until this
  // object is destroyed.
  template <class T, class... N> T* take(N... lengths) {
    return static_cast<T*>(take_bytes(size_t(elements_of(sizeof(T), lengths...))));
  }

  void* take_bytes(size_t bytes) {
#if !defined(PB_SANITIZE)  // a sanitizer only checks the ends of separate blocks
    bytes = (bytes + 63) & ~size_t(63);
    if (bytes <= sizeof(near_) - used_) {
      void* data = near_ + used_;
      used_ += bytes;
      return data;
    }
#endif
    if (blocks_ == kMaxBlocks) throw std::length_error("scratch: too many blocks");
    block_[blocks_] = pb::allocate(bytes);
    return block_[blocks_++].data;
  }

 private:
  static constexpr int kMaxBlocks = 16;
  alignas(64) char near_[32 * 1024];
  size_t used_ = 0;
  Allocation block_[kMaxBlocks];
  int blocks_ = 0;
};

}  // namespace pb::cpu
