// Defines the namespace cooperative_groups: blocks, grids, tiles of a warp, and reductions and scans over tiles.
#pragma once

#include "cudasim/grid.h"
#include "cudasim/warp.h"

namespace cooperative_groups {

using cudasim::Site;

class thread_block {
 public:
  void sync(Site site = Site::here()) const { cudasim::block().barrier(false, site); }
  static unsigned thread_rank() { return cudasim::block().thread(); }
  static unsigned num_threads() { return cudasim::block().size(); }
  static unsigned size() { return num_threads(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

class grid_group {
 public:
  bool is_valid() const { return cudasim::grid_is_cooperative(); }
  void sync(Site site = Site::here()) const { cudasim::grid_barrier(site); }
  static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
  static unsigned long long block_rank() { return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }
  static unsigned long long num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned long long thread_rank() { return block_rank() * thread_block::num_threads() + thread_block::thread_rank(); }
  static unsigned long long size() { return num_threads(); }
  static dim3 dim_blocks() { return gridDim; }
};
inline grid_group this_grid() { return {}; }

// A tile: `Size` neighbouring lanes of a warp, of which the first is a multiple of Size.
template <unsigned Size, class Parent = void> class thread_block_tile {
  static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0, "a tile has a power of two of up to 32 threads");

 public:
  static constexpr unsigned num_threads() { return Size; }
  static constexpr unsigned size() { return Size; }
  static unsigned thread_rank() { return cudasim::block().thread() % Size; }
  static unsigned meta_group_rank() { return cudasim::block().thread() % parent_threads() / Size; }
  static unsigned meta_group_size() { return (parent_threads() + Size - 1) / Size; }

  void sync(Site site = Site::here()) const { __syncwarp(lanes(), site); }
  template <class T> auto shfl(T value, int rank, Site site = Site::here()) const {
    return __shfl_sync(lanes(), value, rank, Size, site);
  }
  template <class T> auto shfl_up(T value, unsigned delta, Site site = Site::here()) const {
    return __shfl_up_sync(lanes(), value, delta, Size, site);
  }
  template <class T> auto shfl_down(T value, unsigned delta, Site site = Site::here()) const {
    return __shfl_down_sync(lanes(), value, delta, Size, site);
  }
  template <class T> auto shfl_xor(T value, int mask, Site site = Site::here()) const {
    return __shfl_xor_sync(lanes(), value, mask, Size, site);
  }
  int any(int predicate, Site site = Site::here()) const { return __any_sync(lanes(), predicate, site); }
  int all(int predicate, Site site = Site::here()) const { return __all_sync(lanes(), predicate, site); }
  unsigned ballot(int predicate, Site site = Site::here()) const { return __ballot_sync(lanes(), predicate, site) >> first(); }
  template <class T> unsigned match_any(T value, Site site = Site::here()) const {
    return __match_any_sync(lanes(), value, site) >> first();
  }

  // Returns the mask of this tile's lanes in the warp.
  static unsigned lanes() { return (Size == 32 ? ~0u : (1u << Size % 32) - 1) << first(); }

 private:
  static unsigned parent_threads() {
    if constexpr (std::is_void_v<Parent> || std::is_same_v<Parent, thread_block>) return thread_block::num_threads();
    else return Parent::num_threads();
  }
  static unsigned first() { return cudasim::block().lane() / Size * Size; }
};

template <unsigned Size, class Parent> thread_block_tile<Size, Parent> tiled_partition(const Parent&) { return {}; }

template <class Group> void sync(const Group& group, Site site = Site::here()) { group.sync(site); }

// ---- the operators of reductions and scans

template <class T> struct plus {
  T operator()(T a, T b) const { return T(a + b); }
};
template <class T> struct less {  // returns the lesser value, as in CUDA; std::less compares
  T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T> struct greater {
  T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T> struct bit_and {
  T operator()(T a, T b) const { return T(a & b); }
};
template <class T> struct bit_or {
  T operator()(T a, T b) const { return T(a | b); }
};
template <class T> struct bit_xor {
  T operator()(T a, T b) const { return T(a ^ b); }
};

// Reduces in the xor tree that CUDA's headers use for floats, so that numbers are added in the same order.
template <unsigned Size, class Parent, class T, class Combine>
T reduce(const thread_block_tile<Size, Parent>& tile, T value, Combine combine, Site site = Site::here()) {
  for (unsigned offset = Size / 2; offset > 0; offset /= 2) {
    value = combine(
        value, cudasim::block().meet(cudasim::Collective::kReduce, tile.lanes(), value, site,
                                     [&](const cudasim::Peers<T>& peers) { return peers[cudasim::block().lane() ^ offset]; }));
  }
  return value;
}

// Combines the values of the tile's threads up to and including this one.
template <unsigned Size, class Parent, class T, class Combine = plus<T>>
T inclusive_scan(const thread_block_tile<Size, Parent>& tile, T value, Combine combine = {}, Site site = Site::here()) {
  for (unsigned offset = 1; offset < Size; offset *= 2) {
    const T before = tile.shfl_up(value, offset, site);
    if (tile.thread_rank() >= offset) value = combine(before, value);
  }
  return value;
}
template <unsigned Size, class Parent, class T> T exclusive_scan(const thread_block_tile<Size, Parent>& tile, T value,
                                                                 Site site = Site::here()) {
  const T before = tile.shfl_up(inclusive_scan(tile, value, plus<T>(), site), 1, site);
  return tile.thread_rank() == 0 ? T(0) : before;
}

}  // namespace cooperative_groups
