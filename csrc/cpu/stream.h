// Reads a strided view of any dtype as contiguous blocks of a compute type, and writes such blocks back.
// This is why a kernel needs only its contiguous loop: broadcasting, strides and half precision are staged through a
// block that stays in the first-level cache.
#pragma once
#include "launch/shape.h"

namespace pb::cpu {

constexpr int64_t kBlock = 1024;  // elements of a staged block: 8 KB of double
constexpr int64_t kBlockBytes = kBlock * 8;

// n elements at src (stride in bytes) to or from contiguous elements of the compute type.
void load(DType dtype, Compute compute, const char* src, int64_t stride, int64_t n, void* dst);
void store(Compute compute, DType dtype, const void* src, int64_t n, char* dst, int64_t stride);

// The elements of a collapsed view in order, as contiguous blocks of a compute type.
class Reader {
 public:
  Reader() = default;
  Reader(const View& view, Compute compute);

  // True where every block can be pointed at instead of copied.
  bool direct() const { return direct_; }
  // Elements [i, i + n), n <= kBlock unless direct(): a pointer into the view where it is contiguous there, else `buffer`.
  const void* block(int64_t i, int64_t n, void* buffer);

 private:
  View view_;
  Compute compute_;
  bool direct_, same_type_;
  const char* splat_ = nullptr;  // the element that fills `buffer` already
  int64_t splat_count_ = 0;
};

}  // namespace pb::cpu
