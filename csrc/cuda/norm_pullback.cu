// Pullbacks of layer norm and RMS norm. Each team of threads takes a chain of rows in turn, and accumulates its part of the
// gradients of weight and bias in registers. The sums of the chains are then added up in the order of families/order.h. If
// registers can hold a row, g and x are read once; gx is always written once.
#include <algorithm>

#include "cuda/row_launch.cuh"
#include "families/norm_rows.h"

namespace pb::cuda {
namespace {

using kernels::kOrderChain;

struct NormOperands {
  Line weight;
  double eps;
};

// The sums of the chains of rows: for each chain a row of n for each gradient.
template <class C> struct Chains {
  C* data;
  int64_t begin;  // the number of the launch's first chain
};

// Sums in registers. If `on` is false (a team without a row), nothing is added.
template <class C> struct Sums {
  C* v;
  bool on;
  struct Cell {
    C& sum;
    bool on;
    __device__ __forceinline__ void operator+=(C a) const { sum = on ? sum + a : sum; }
  };
  template <class I> __device__ __forceinline__ Cell operator[](ElementPosition<I> i) const { return {v[i.slot], on}; }
};

template <bool kCentred, class T>
__global__ void __launch_bounds__(kMostThreads<acc_t<T>>, 1)
    pull_in_registers(const __grid_constant__ RowPartition partition, const __grid_constant__ RowSet<3> rows,
                      const __grid_constant__ NormOperands norm, const __grid_constant__ Chains<acc_t<T>> chains) {
  using C = acc_t<T>;
  const int64_t chain = team_number(partition);
  // The first row of the block. Its teams stay in step, which the compiler must know to be able to shuffle without a detour.
  const int64_t leading = int64_t(blockIdx.x) * partition.teams * kOrderChain;
  RegisterRow<T> over(partition, true);
  C gw[kShare], gb[kShare];
#pragma unroll
  for (int s = 0; s < kShare; ++s) gw[s] = gb[s] = C(0);
  for (int64_t k = 0; k < kOrderChain && leading + k < rows.count; ++k) {
    const int64_t row = chain * kOrderChain + k;
    over.active = row < rows.count;
    Line line[3];
    rows.lines(over.active ? uint32_t(row) : 0, line);
    C g[kShare], x[kShare], gx[kShare];
    const auto g_row = over.load(line[1], g), x_row = over.load(line[2], x);
    kernels::NormPullback<kCentred>()(over, g_row, x_row, over.memory_row(norm.weight, C(1)), C(norm.eps),
                                      typename RegisterRow<T>::Kept{gx, {}}, Sums<C>{gw, over.active},
                                      Sums<C>{gb, over.active});
    over.store(line[0], gx);
  }
  if (chain * kOrderChain >= rows.count) return;
  C* const to = chains.data + (chains.begin + chain) * (kCentred ? 2 : 1) * partition.n;
#pragma unroll
  for (int s = 0; s < kShare; ++s)
    if (over.has(s)) {
      to[over.place(s).column] = gw[s];
      if constexpr (kCentred) to[partition.n + over.place(s).column] = gb[s];
    }
}

// ---- rows too long for registers: gx first, then the column sums, which read g and x again

template <class C> struct Moments {
  C mean, inverse;
};

template <bool kCentred, class T>
__global__ void __launch_bounds__(kMaxTeam)
    pull_streamed(int64_t n, const __grid_constant__ RowSet<3> rows, const __grid_constant__ NormOperands norm,
                  Moments<acc_t<T>>* moments) {
  using C = acc_t<T>;
  const Streamed<T> over(n, threadIdx.x);
  Line line[3];
  rows.lines(blockIdx.x, line);
  const auto x = over.memory_row(line[2]);
  C mean = C(0), r;
  if constexpr (kCentred) {
    const kernels::Spread<C> spread = kernels::spread_of(over, x);
    mean = spread.mean, r = kernels::inverse_deviation(spread, over, x, C(norm.eps));
  } else {
    r = kernels::inverse_size(over, x, C(norm.eps));
  }
  rows.lines(blockIdx.x, line);  // once more, because nothing of a line then stays in registers while x is read
  const auto g = over.memory_row(line[1]), w = over.memory_row(norm.weight, C(1));
  const C along = kCentred ? C(over.mean(over.template fold<sum_reduce>([=](auto i) { return C(g[i] * w[i]); }))) : C(0);
  const C across = over.mean(over.template fold<sum_reduce>([=](auto i) { return C(g[i] * w[i] * ((x[i] - mean) * r)); }));
  const auto gx = over.written(line[0]);
  over.each([=](auto i) {
    const C h = g[i] * w[i], z = (x[i] - mean) * r;
    gx[i] = r * (h - along - z * across);
  });
  if (threadIdx.x == 0) moments[blockIdx.x] = {mean, r};
}

// Each thread sums one column over the rows of one chain. A chain has `across` blocks of threads.
template <bool kCentred, class T>
__global__ void __launch_bounds__(kThreads)
    pull_norm_columns(int64_t n, unsigned across, const __grid_constant__ RowSet<3> rows, const Moments<acc_t<T>>* moments,
                      const __grid_constant__ Chains<acc_t<T>> chains) {
  using C = acc_t<T>;
  const int64_t column = int64_t(blockIdx.x % across) * kThreads + threadIdx.x, chain = blockIdx.x / across;
  if (column >= n) return;
  C gw = C(0), gb = C(0);
  const int64_t first = chain * kOrderChain;
#pragma unroll 2
  for (int64_t row = first; row < first + kOrderChain && row < rows.count; ++row) {
    Line line[3];
    rows.lines(uint32_t(row), line);
    const C g = line[1].load<T>(column), x = line[2].load<T>(column);
    gw = gw + g * ((x - moments[row].mean) * moments[row].inverse);
    gb = gb + g;
  }
  C* const to = chains.data + (chains.begin + chain) * (kCentred ? 2 : 1) * n + column;
  to[0] = gw;
  if constexpr (kCentred) to[n] = gb;
}

// ---- the sums of the chains, as a matrix of `width` columns, are added up in blocks of 256, and then over the blocks

// The gradients of weight and bias, which follow one another.
template <class T> struct Gradients {
  int64_t n;
  DType dtype;
  char *gw, *gb;
  __device__ void put(int64_t column, acc_t<T> sum) const {
    write<T>(dtype, column < n ? gw + column * int(sizeof(T)) : gb + (column - n) * int(sizeof(T)), sum);
  }
};

// A block of threads has 32 columns of one block of chains, of which each of its 32 warps adds every 32nd. The results are the rows of
// `results`, or the gradients if there is a single block of chains.
template <class T>
__global__ void __launch_bounds__(1024) fold_chains(const acc_t<T>* chains, int64_t count, int64_t width, unsigned across,
                                                    acc_t<T>* results, const __grid_constant__ Gradients<T> gradients) {
  using C = acc_t<T>;
  __shared__ C sums[kWarp][kWarp + 1];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t block = blockIdx.x / across, begin = int64_t(blockIdx.x % across) * kWarp;
  C a[kShare];
#pragma unroll
  for (int s = 0; s < kShare; ++s) {
    const int64_t chain = block * kOrderBlock + s * int(kWarp) + warp;
    a[s] = chain < count && begin + lane < width ? chains[chain * width + begin + lane] : no_term<sum_reduce, C>();
  }
  sums[warp][lane] = fold_share<sum_reduce>(a);
  __syncthreads();
  const C sum = fold_warp<sum_reduce>(sums[lane][warp]);  // each warp reduces one column
  const int64_t column = begin + warp;
  if (lane > 0 || column >= width) return;
  if (count <= kOrderBlock) gradients.put(column, sum);
  else results[block * width + column] = sum;
}

// Each warp adds up the results of one column.
template <class T>
__global__ void __launch_bounds__(kThreads)
    fold_blocks(const acc_t<T>* results, int64_t count, int64_t width, const __grid_constant__ Gradients<T> gradients) {
  using C = acc_t<T>;
  const int64_t column = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (column >= width) return;
  const C sum = fold_results<sum_reduce, C>(count, [=](int64_t block) { return results[block * width + column]; });
  if (threadIdx.x % kWarp == 0) gradients.put(column, sum);
}

template <bool kCentred, class T> struct Pull {
  using C = acc_t<T>;
  static constexpr int kSums = kCentred ? 2 : 1;
  const Launch& launch;
  int64_t n, rows, width;
  Scratch scratch;
  View operands[3];
  NormOperands norm;
  Chains<C> chains;

  explicit Pull(const Launch& launch)
      : launch(launch),
        n(kernels::row_length(launch.in())),
        rows(kernels::row_count(launch.in())),
        width(kSums * n),
        operands{launch.out(), at_hand(launch.in(0), scratch), at_hand(launch.in(1), scratch)},
        norm{launch.ints[0] ? Line(launch.in(2)) : Line(), launch.reals[0]},
        chains{scratch.take<C>(std::max<int64_t>(1, kernels::order_chains(rows)) * width), 0} {}

  void in_registers(const RowPartition& partition) {
    each_row_set<3>(operands, [&](const RowSet<3>& set) {
      const int64_t count = kernels::order_chains(set.count);
      start(pull_in_registers<kCentred, T>, dim3(partition.blocks(count)), partition.threads(), 0, partition, set, norm,
            chains);
      chains.begin += count;
    });
  }
  void streamed() {
    each_row_set<3>(operands,
                    [&](const RowSet<3>& set) {  // always one set: there is no memory for more rows of this length
                      auto* const moments = scratch.template take<Moments<C>>(set.count);
                      start(pull_streamed<kCentred, T>, dim3(set.count), kMaxTeam, 0, n, set, norm, moments);
                      const unsigned across = blocks_for(n).x;
                      const dim3 blocks = blocks_for(across * kernels::order_chains(set.count), 1);
                      start(pull_norm_columns<kCentred, T>, blocks, kThreads, 0, n, across, set, moments, chains);
                    });
  }
  void fold() {
    const Gradients<T> gradients{n, launch.out(1).dtype, launch.out(1).data, kSums > 1 ? launch.out(2).data : nullptr};
    const int64_t count = kernels::order_chains(rows), blocks = std::max<int64_t>(1, kernels::order_blocks(count));
    C* const results = blocks > 1 ? scratch.template take<C>(blocks * width) : nullptr;
    const unsigned across = blocks_for(width, kWarp).x;
    start(fold_chains<T>, blocks_for(across * blocks, 1), 1024, 0, chains.data, count, width, across, results, gradients);
    if (blocks > 1) start(fold_blocks<T>, blocks_for(width * kWarp), kThreads, 0, results, blocks, width, gradients);
  }

  void operator()() {
    if (n > kLongestHeld<acc_t<T>>) streamed();
    else in_registers(RowPartition(n));
    fold();
  }
};

template <bool kCentred> void norm_pullback(const Launch& launch) {
  if (kernels::row_length(launch.in()) == 0) return;
  visit_float(launch.in().dtype, [&](auto tag) {
    Pull<kCentred, typename decltype(tag)::type> pull(launch);
    pull();
  });
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

void run_layer_norm_pullback(const Launch& launch) { cuda::norm_pullback<true>(launch); }
void run_rms_norm_pullback(const Launch& launch) { cuda::norm_pullback<false>(launch); }

}  // namespace pb::kernels
