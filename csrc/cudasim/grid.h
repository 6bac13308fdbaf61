// The blocks of a launch: one after another, or on several OS threads; together where the launch is cooperative.
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

// The barrier of a cooperative grid, in device code.
bool grid_is_cooperative();
void grid_barrier(Site site);

// Lets another thread run, and another block where the grid is cooperative: for loops that wait for others.
void give_way();

}  // namespace cudasim
