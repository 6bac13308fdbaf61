// Reads a strided view of any dtype as contiguous blocks of a compute type, and writes such blocks back. A kernel then needs only a
// contiguous loop: broadcast, strided and half precision operands are staged through a block that stays in the L1 cache.
#pragma once
#include "launch/shape.h"

namespace pb::cpu {

constexpr int64_t kBlock = 1024;  // the elements of a staged block: 8 KB of double
constexpr int64_t kBlockBytes = kBlock * 8;

// Convert n elements to or from contiguous elements of the compute type. `stride` is the distance of the elements of `dtype`, in
// bytes.
void load(DType dtype, Compute compute, const char* src, int64_t stride, int64_t n, void* dst);
void store(Compute compute, DType dtype, const void* src, int64_t n, char* dst, int64_t stride);

// Reads the elements of a collapsed view in order, as contiguous blocks of a compute type.
class Reader {
 public:
  Reader() = default;
  Reader(const View& view, Compute compute);

  // True if no block has to be copied.
  bool direct() const { return direct_; }
  // Returns elements [i, i + n): a pointer into the view if they are contiguous there, otherwise `buffer`, to which they are
  // copied. n is at most kBlock unless direct(). All calls need the same buffer, with the contents that the last call left: an
  // element that repeats is copied only once.
  const void* block(int64_t i, int64_t n, void* buffer);

 private:
  View view_;
  Compute compute_;
  bool direct_, same_type_;
  const char* splat_ = nullptr;  // the element that `buffer` is already filled with
  int64_t splat_count_ = 0;
};

}  // namespace pb::cpu
