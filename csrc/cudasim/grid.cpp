// Runs the blocks of a grid.
#include "cudasim/grid.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <vector>

#include "cudasim/crew.h"
#include "cudasim/shared.h"
#include "cudasim/turns.h"

namespace cudasim {
namespace {

thread_local Turns* turns = nullptr;  // the turns of the running grid; null if it is not cooperative
thread_local unsigned block_number = 0;

// Returns the order in which blocks begin, which is random with a seed.
std::vector<unsigned> order_of(unsigned blocks, uint64_t seed, uint64_t launch) {
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  if (seed) {
    Random random(Random(seed ^ launch << 20).next());
    for (unsigned k = blocks; k > 1; --k) std::swap(order[k - 1], order[random.below(k)]);
  }
  return order;
}

void run_block(const Grid& grid, const Call& call, unsigned number, const Options& options, uint64_t launch) {
  static thread_local const auto block = std::make_unique<Block>();
  const dim3 size = grid.blocks;
  const uint3 index = {number % size.x, number / size.x % size.y, number / size.x / size.y};
  gridDim = size;
  blockDim = grid.threads;
  poison_shared(call.kernel, grid.dynamic_shared);
  block->run(call, index, Schedule(options.seed, launch, number), options.strict);
}

void run_together(const Grid& grid, const Call& call, unsigned blocks, const Options& options, uint64_t launch) {
  Turns all(blocks, options.threads, options.seed ? Random(options.seed + launch).next() | 1 : 0);
  run_on_crew(blocks, [&](unsigned number) {
    all.begin(number);
    turns = &all;
    block_number = number;
    run_block(grid, call, number, options, launch);
    turns = nullptr;
    all.end(number);
  });
}

}  // namespace

void run_grid(const Grid& grid, const Call& call) {
  static std::atomic<uint64_t> launches{0};
  const uint64_t launch = launches++;
  const Options options = Options::from_environment();
  const unsigned blocks = grid.blocks.x * grid.blocks.y * grid.blocks.z;
  if (grid.cooperative) return run_together(grid, call, blocks, options, launch);
  const std::vector<unsigned> order = order_of(options.seed ? blocks : 0, options.seed, launch);
  std::atomic<unsigned> next{0};
  run_on_crew(std::min(options.threads, blocks), [&](unsigned) {
    for (unsigned k; (k = next++) < blocks;) run_block(grid, call, options.seed ? order[k] : k, options, launch);
  });
}

bool grid_is_cooperative() { return turns != nullptr; }

void grid_barrier(Site site) {
  if (!turns) fail("grid barrier at %s:%d in a launch that is not cooperative", site.file, site.line);
  Block& block = Block::running();
  block.barrier(false, site);
  if (block.thread() == 0) turns->barrier(block_number);
  block.barrier(false, site);
}

void give_way() {
  Block::running().yield();
  if (turns) turns->give_way(block_number);
}

}  // namespace cudasim
