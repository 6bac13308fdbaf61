// A random order: positions sorted by random 64-bit keys. Keys are not stored; they are drawn again whenever they are needed.
#include "cuda/radix_sort.cuh"
#include "families/random.h"
#include "math/random.h"

namespace pb::cuda {
namespace {

struct RandomKeys {
  const uint64_t* state;
  __device__ uint64_t operator()(int64_t i) const {
    return random::pair(random::philox(state[0], {uint64_t(i / 2), state[1]}), int(i % 2));
  }
};

// The items of the radix sort: the upper halves of the keys.
struct UpperHalves {
  RandomKeys keys;
  __device__ RandomKeys row(int64_t) const { return keys; }
  __device__ uint32_t item(const RandomKeys& source, int64_t i) const { return uint32_t(source(i) >> 32); }
};
struct ToOrder {
  static constexpr bool kPositions = true;
  uint32_t* halves;
  int64_t* order;
  __device__ int64_t* row(int64_t) const { return order; }
  __device__ void put(int64_t* sink, int64_t i, uint32_t half, uint32_t position) const {
    halves[i] = half, sink[i] = position;
  }
};

// Sorts runs of equal upper halves by the lower halves. Runs are few and short, so the thread at the beginning of a run sorts it
// alone.
__global__ void __launch_bounds__(kThreads) sort_runs(RandomKeys keys, const uint32_t* halves, int64_t n, int64_t* order) {
  const int64_t begin = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (begin + 1 >= n || halves[begin] != halves[begin + 1] || (begin > 0 && halves[begin] == halves[begin - 1])) return;
  for (int64_t i = begin + 1; i < n && halves[i] == halves[begin]; ++i) {
    const int64_t position = order[i];
    const uint32_t lower = uint32_t(keys(position));
    int64_t to = i;
    for (; to > begin && uint32_t(keys(order[to - 1])) > lower; --to) order[to] = order[to - 1];
    order[to] = position;
  }
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void permutation(const Launch& launch) {
  using namespace cuda;
  const int64_t n = launch.out().size();
  const RandomKeys keys{launch.in().as<uint64_t>()};
  int64_t* order = launch.out().as<int64_t>();
  Scratch scratch;
  uint32_t* halves = scratch.take<uint32_t>(n);
  radix::sort_rows<uint32_t>(UpperHalves{keys}, radix::AsTheyAre<uint32_t>{}, ToOrder{halves, order}, 1, n, 32);
  start(sort_runs, blocks_for(n), kThreads, 0, keys, halves, n, order);
}

}  // namespace pb::kernels
