// The kernels of pools, and their costs. Comparisons are free.
#include "families/pool.h"

namespace pb::kernels {
namespace {

void free_cost(const Launch&, Cost&) {}
// Each cotangent is added to one element of gx.
void max_pullback_cost(const Launch& launch, Cost& cost) { cost.adds = launch.in(0).size(); }

// A mean of n elements takes n - 1 additions and a division.
void avg_cost(const Launch& launch, Cost& cost) {
  const int64_t windows = launch.out().size();
  cost.adds = pooled_elements(PoolShape(launch, launch.in(), launch.out(), false)) - windows;
  cost.special = windows;
}
// Each cotangent is divided once, and added to each element of its window.
void unpool_cost(const Launch& launch, Cost& cost) {
  cost.adds = pooled_elements(PoolShape(launch, launch.out(), launch.in(), false));
  cost.special = launch.in().size();
}

}  // namespace

int64_t pooled_elements(const PoolShape& shape) {
  int64_t rows = 0, columns = 0;
  for (int64_t o = 0; o < shape.h.out; ++o) rows += shape.h.end(o) - shape.h.begin(o);
  for (int64_t o = 0; o < shape.w.out; ++o) columns += shape.w.end(o) - shape.w.begin(o);
  return shape.planes * rows * columns;
}

const Kernel max_pool{"max_pool", run_max_pool, free_cost};
const Kernel max_pool_indices{"max_pool_indices", run_max_pool_indices, free_cost};
const Kernel max_pool_pullback{"max_pool_pullback", run_max_pool_pullback, max_pullback_cost};
const Kernel avg_pool{"avg_pool", run_avg_pool, avg_cost, executed_avg_pool};
const Kernel avg_unpool{"avg_unpool", run_avg_unpool, unpool_cost, executed_avg_unpool};

}  // namespace pb::kernels
