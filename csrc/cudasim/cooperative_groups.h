// Defines the namespace cooperative_groups: the grid of a cooperative launch, whose blocks wait for each other.
#pragma once

#include "cudasim/block.h"
#include "cudasim/grid.h"

namespace cooperative_groups {

using cudasim::Site;

class grid_group {
 public:
  bool is_valid() const { return cudasim::grid_is_cooperative(); }
  void sync(Site site = Site::here()) const { cudasim::grid_barrier(site); }
  static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
  static unsigned long long block_rank() { return (1ull * blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }
  static unsigned long long num_threads() { return num_blocks() * threads_of_block(); }
  static unsigned long long thread_rank() { return block_rank() * threads_of_block() + cudasim::Block::running().thread(); }
  static unsigned long long size() { return num_threads(); }
  static dim3 dim_blocks() { return gridDim; }

 private:
  static unsigned threads_of_block() { return cudasim::Block::running().size(); }
};
inline grid_group this_grid() { return {}; }

}  // namespace cooperative_groups
