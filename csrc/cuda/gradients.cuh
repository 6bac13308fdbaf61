// Kernels over many tensors in one launch: their gradients, with any strides, and the assignment of blocks to parts of tensors.
#pragma once
#include <vector>

#include "cuda/operand.cuh"

namespace pb::cuda {

constexpr size_t kMaxArguments = 32764;  // the most bytes that the arguments of a kernel may take

// Memory for the copies that a launch needs. It is given back like that of Scratch, but the number of pieces is not limited.
class Copies {
 public:
  Copies() = default;
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  ~Copies() {
    for (const Allocation& block : blocks_) give_back_working_memory(block);
  }
  char* take(int64_t bytes) {
    blocks_.push_back({});
    blocks_.back() = working_memory(size_t(bytes));
    return static_cast<char*>(blocks_.back().data);
  }

 private:
  std::vector<Allocation> blocks_;
};

// A gradient whose elements are read by their position in a row. It is flat, or has up to two axes with any strides. A gradient
// with more axes is copied.
struct Gradient {
  const char* data;
  int64_t row, column;  // strides in bytes
  Divider columns;
  DType dtype;
  bool flat;

  // view: must be collapsed.
  Gradient(View view, Copies& copies);
  Gradient() = default;

  bool packs() const { return flat && reinterpret_cast<uintptr_t>(data) % (4 * item_size(dtype)) == 0; }
  // Returns what packs() will return for the gradient made from `view`. Copies can always be read by packs.
  static bool packs_of(const View& view) {
    return view.contiguous() ? reinterpret_cast<uintptr_t>(view.data) % (4 * item_size(view.dtype)) == 0 : !walks(view);
  }
  // True if a view that is not flat is read in place.
  static bool walks(const View& view) { return view.ndim <= 2 && view.size() <= kMaxWalk; }
  template <class A> __device__ A at(int64_t i) const { return load_as<A>(dtype, address(i, size_of<A>(dtype))); }
  // size: bytes of an element
  __device__ const char* address(int64_t i, int size) const {
    if (flat) return data + i * size;
    const uint32_t r = columns.divide(uint32_t(i)), c = uint32_t(i) - r * columns.divisor;
    return data + r * row + c * column;
  }
};

// The assignment of chunks to the entries of a list.
template <int kMax> struct Chunks {
  int entries = 0;
  uint32_t first[kMax + 1] = {};  // number of each entry's first chunk, then the number of all chunks

  __host__ __device__ uint32_t count() const { return first[entries]; }
  // Adds an entry with this number of chunks. Returns the entry's index.
  int add(int64_t chunks) {
    if (int64_t(count()) + chunks > kMaxBlocks) throw Failure("more elements than a grid has blocks for");
    first[entries + 1] = first[entries] + uint32_t(chunks);
    return entries++;
  }
  __device__ int find(uint32_t chunk) const {
    int t = 0;
    for (int high = entries; high - t > 1;) {
      const int middle = (t + high) / 2;
      if (first[middle] <= chunk) t = middle;
      else high = middle;
    }
    return t;
  }
};

}  // namespace pb::cuda
