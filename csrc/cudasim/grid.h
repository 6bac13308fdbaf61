// Runs the blocks of a launch: one after another, or on several OS threads. The blocks of a cooperative launch take turns.
#pragma once

#include <cstddef>

#include "cudasim/block.h"
#include "cudasim/language.h"

namespace cudasim {

struct Grid {
  dim3 blocks, threads;
  size_t dynamic_shared = 0;
  bool cooperative = false;
};

void run_grid(const Grid& grid, const Call& call);

// Device code calls these. grid_barrier() fails if the grid is not cooperative.
bool grid_is_cooperative();
void grid_barrier(Site site);

// Lets another thread run and, in a cooperative grid, another block. Loops that wait for another thread or block call it.
void give_way();

}  // namespace cudasim
