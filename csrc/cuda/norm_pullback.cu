// Pullbacks of layer norm and RMS norm. Each team of threads takes several rows in turn and accumulates its part of the gradients
// of weight and bias in registers. The parts are then added up in the order of their numbers. If registers can hold a row, g and x
// are read once; gx is always written once.
#include <algorithm>

#include "cuda/row_launch.cuh"

namespace pb::cuda {
namespace {

// At most as many parts as this number of threads makes. There are fewer if a team would have less than kRowsEach rows.
constexpr int64_t kPartThreads = 128 * 1024, kRowsEach = 8;

struct NormOperands {
  Line weight;
  double eps;
};

// The partial gradients gw and gb. There is one part per team, or per warp if several teams share a warp; a part has one row of n
// for each gradient.
template <class C> struct Parts {
  C* data;
  int64_t begin;      // the number of the launch's first part
  int64_t rows_each;  // rows per team
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

// Stores the threads' sums of one gradient in the part. Teams that share a warp add up their sums first.
template <class T, int kPer, bool kBlock, class C>
__device__ __forceinline__ void put_sums(const RegisterRow<T, kPer, kBlock>& over, C (&sums)[kPer], C* to) {
  if constexpr (!kBlock) {
    for (unsigned half = over.team.size; half < kWarp; half *= 2)
#pragma unroll
      for (int s = 0; s < kPer; ++s) sums[s] = sums[s] + shuffle_xor(sums[s], int(half));
    if (threadIdx.x % kWarp >= over.team.size) return;
  }
#pragma unroll
  for (int s = 0; s < kPer; ++s)
    if (s < over.count) to[over.place(s).column] = sums[s];
}

template <bool kCentred, class T, int kPer, bool kBlock>
__global__ void __launch_bounds__(kBlock ? kMaxTeam : int(kThreads), kBlock || (sizeof(acc_t<T>) == 8) ? 1 : 3)
    pull_in_registers(const __grid_constant__ RowPartition partition, const __grid_constant__ RowSet<3> rows,
                      const __grid_constant__ NormOperands norm, const __grid_constant__ Parts<acc_t<T>> parts) {
  using C = acc_t<T>;
  // A part is one block, or the teams of one warp, which process neighbouring rows in step.
  const int64_t part = kBlock ? blockIdx.x : (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const unsigned beside = kBlock ? 1 : kWarp >> partition.shift, mine = kBlock ? 0 : threadIdx.x % kWarp >> partition.shift;
  if (part * parts.rows_each * beside >= rows.count) return;
  RegisterRow<T, kPer, kBlock> over(partition, kBlock ? threadIdx.x : threadIdx.x & (partition.team - 1), true);
  C gw[kPer], gb[kPer];
#pragma unroll
  for (int s = 0; s < kPer; ++s) gw[s] = gb[s] = C(0);
  for (int64_t k = 0; k < parts.rows_each; ++k) {
    const int64_t first = (part * parts.rows_each + k) * beside;
    if (first >= rows.count) break;
    over.active = first + mine < rows.count;
    Line line[3];
    rows.lines(over.active ? uint32_t(first + mine) : 0, line);
    C g[kPer], x[kPer], gx[kPer];
    const auto g_row = over.load(line[1], g), x_row = over.load(line[2], x);
    kernels::NormPullback<kCentred>()(over, g_row, x_row, over.memory_row(norm.weight, C(1)), C(norm.eps),
                                      typename RegisterRow<T, kPer, kBlock>::Kept{gx, {}}, Sums<C>{gw, kBlock || over.active},
                                      Sums<C>{gb, kBlock || over.active});
    over.store(line[0], gx);
  }
  C* const to = parts.data + (parts.begin + part) * (kCentred ? 2 : 1) * partition.n;
  put_sums(over, gw, to);
  if constexpr (kCentred) put_sums(over, gb, to + partition.n);
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
  const auto g = over.memory_row(line[1]), x = over.memory_row(line[2]), w = over.memory_row(norm.weight, C(1));
  C mean = C(0), r, along = C(0);
  if constexpr (kCentred) {
    const kernels::Spread<C> spread = kernels::spread_of(over, x, C(norm.eps));
    mean = spread.mean, r = spread.inverse;
    along = over.mean(over.template fold<sum_reduce>([=](auto i) { return C(g[i] * w[i]); }));
  } else {
    r = kernels::inverse_size(over, x, C(norm.eps));
  }
  const C across = over.mean(over.template fold<sum_reduce>([=](auto i) { return C(g[i] * w[i] * ((x[i] - mean) * r)); }));
  const auto gx = over.written(line[0]);
  over.each([=](auto i) {
    const C h = g[i] * w[i], z = (x[i] - mean) * r;
    gx[i] = r * (h - along - z * across);
  });
  if (threadIdx.x == 0) moments[blockIdx.x] = {mean, r};
}

// Each thread sums one column over the rows of one part.
template <bool kCentred, class T>
__global__ void __launch_bounds__(kThreads)
    pull_columns(int64_t n, const __grid_constant__ RowSet<3> rows, const Moments<acc_t<T>>* moments,
                 const __grid_constant__ Parts<acc_t<T>> parts) {
  using C = acc_t<T>;
  const int64_t column = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= n) return;
  C gw = C(0), gb = C(0);
  const int64_t first = blockIdx.y * parts.rows_each;
  for (int64_t row = first; row < first + parts.rows_each && row < rows.count; ++row) {
    Line line[3];
    rows.lines(uint32_t(row), line);
    const C g = C(line[1].at<const T>(column)), x = C(line[2].at<const T>(column));
    gw = gw + g * ((x - moments[row].mean) * moments[row].inverse);
    gb = gb + g;
  }
  C* const to = parts.data + blockIdx.y * (kCentred ? 2 : 1) * n + column;
  to[0] = gw;
  if constexpr (kCentred) to[n] = gb;
}

// ---- adding up the parts: a block has 32 columns, and each of its 32 warps adds every 32nd part

template <class T>
__global__ void __launch_bounds__(1024)
    fold_parts(const acc_t<T>* parts, int64_t count, int64_t width, int64_t n, T* gw, T* gb) {
  using C = acc_t<T>;
  __shared__ C sums[kWarp][kWarp + 1];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t begin = int64_t(blockIdx.x) * kWarp, column = begin + lane;
  C sum = C(0);
  if (column < width) {
#pragma unroll 4
    for (int64_t k = warp; k < count; k += kWarp) sum = sum + parts[k * width + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  sum = fold_warp<sum_reduce>(sums[lane][warp]);  // each warp reduces one column
  const int64_t at = begin + warp;
  if (lane == 0 && at < width) (at < n ? gw[at] : gb[at - n]) = T(sum);
}

// The split of the rows into parts. A part takes `beside` rows at a time.
struct Split {
  int64_t rows_each, parts;
  Split(int64_t rows, int64_t beside, int64_t most) {
    const int64_t steps = (rows + beside - 1) / beside;
    rows_each = (steps + most - 1) / most;
    if (rows_each < kRowsEach) rows_each = kRowsEach;
    parts = (steps + rows_each - 1) / rows_each;
  }
};

// Elements per thread in a warp, and in a block. More would spill, because a thread holds five arrays of this length.
constexpr int kPerLane = 8;
template <class C> constexpr int kPerBlockThread = sizeof(C) == 8 ? 4 : 8;

// The team of threads for a row of n elements. It holds the row in registers, or streams it if the row is too long.
template <class T> struct Shared {
  using C = acc_t<T>;
  bool blocks, held;
  RowPartition partition;

  explicit Shared(int64_t n)
      : blocks(n > kPerLane * int64_t{kWarp}),
        held(n <= kPerBlockThread<C> * int64_t{kMaxTeam}),
        partition(int(n), held ? team_for(n, blocks ? kPerBlockThread<C> : kPerLane) : kMaxTeam, kPackOf<T>) {}
  Split split(int64_t rows) const {
    return blocks ? Split(rows, 1, kPartThreads / partition.team) : Split(rows, kWarp / partition.team, kPartThreads / kWarp);
  }
};

template <bool kCentred, class T> struct Pull {
  using C = acc_t<T>;
  static constexpr int kSums = kCentred ? 2 : 1;
  const Launch& launch;
  int64_t n;
  Scratch scratch;
  View operands[3];
  NormOperands norm;

  explicit Pull(const Launch& launch)
      : launch(launch),
        n(kernels::row_length(launch.in())),
        operands{launch.out(), at_hand(launch.in(0), scratch), at_hand(launch.in(1), scratch)},
        norm{launch.ints[0] ? Line(launch.in(2)) : Line(), launch.reals[0]} {}

  C* take_parts(int64_t count) { return scratch.template take<C>((count ? count : 1) * kSums * n); }
  void fold(const C* parts, int64_t count) const {
    start(fold_parts<T>, blocks_for(kSums * n, kWarp), 1024, 0, parts, count, kSums * n, n, launch.out(1).as<T>(),
          kSums > 1 ? launch.out(2).as<T>() : nullptr);
  }

  template <int kPer, bool kBlock> void in_registers() {
    const Shared<T> shared(n);
    const RowPartition& partition = shared.partition;
    int64_t count = 0;
    each_row_set<3>(operands, [&](const RowSet<3>& rows) { count += shared.split(rows.count).parts; });
    Parts<C> parts{take_parts(count), 0, 0};
    each_row_set<3>(operands, [&](const RowSet<3>& rows) {
      const Split now = shared.split(rows.count);
      parts.rows_each = now.rows_each;
      const dim3 blocks = kBlock ? dim3(unsigned(now.parts)) : blocks_for(now.parts * kWarp);
      start(pull_in_registers<kCentred, T, kPer, kBlock>, blocks, kBlock ? partition.team : kThreads, 0, partition, rows, norm,
            parts);
      parts.begin += now.parts;
    });
    fold(parts.data, count);
  }

  void streamed() {
    const int64_t rows = kernels::row_count(launch.in());
    const Split split(rows, 1, std::max<int64_t>(1, kPartThreads / n));
    const Parts<C> parts{take_parts(split.parts), 0, split.rows_each};
    each_row_set<3>(operands, [&](const RowSet<3>& set) {  // always one set: there is no memory for more rows of this length
      auto* const moments = scratch.template take<Moments<C>>(rows);
      start(pull_streamed<kCentred, T>, dim3(set.count), kMaxTeam, 0, n, set, norm, moments);
      const dim3 blocks(blocks_for(n).x, unsigned(split.parts));
      start(pull_columns<kCentred, T>, blocks, kThreads, 0, n, set, moments, parts);
    });
    fold(parts.data, split.parts);
  }

  void operator()() {
    const Shared<T> shared(n);
    if (!shared.held) streamed();
    else if (shared.blocks) in_registers<kPerBlockThread<C>, true>();
    else in_registers<kPerLane, false>();
  }
};

template <bool kCentred> void norm_pullback(const Launch& launch) {
  if (kernels::row_length(launch.in()) == 0) return;
  visit_float(launch.in().dtype, [&](auto tag) {
    Pull<kCentred, typename decltype(tag)::type> pull(launch);
    pull();
  });
}

// Returns the number of teams that process rows. This includes teams without a row, which stay in step with the other teams of
// their warp.
int64_t teams_in_registers(const RowPartition& partition, bool blocks, int64_t rows) {
  const int64_t beside = blocks ? 1 : kWarp / partition.team;
  return (rows + beside - 1) / beside * beside;
}

// Returns the additions for the sums of gw and gb, apart from those that the walks count. The teams of a warp add up their sums,
// and fold_parts adds up the parts. Teams without a row add nothing to the sums, so what the walks count for them is subtracted.
template <class T> int64_t additions_of_sums(int64_t rows, int64_t n, int64_t sums) {
  const Shared<T> shared(n);
  const int64_t parts = shared.split(rows).parts, columns = sums * n;
  const int64_t folded = parts * columns + int64_t(blocks_for(columns, kWarp).x) * kWarp * kWarp * 5;
  if (shared.blocks) return folded;
  int64_t rounds = 0;
  for (unsigned team = shared.partition.team; team < kWarp; team *= 2) ++rounds;
  const int64_t missing = teams_in_registers(shared.partition, false, rows) - rows;
  const kernels::Walks walks = walks_in_registers(missing, shared.partition, kPackOf<T>);
  int64_t left_out = 0;
  for (const auto& [count, elements, combines] : walks.alike) left_out += count * elements;
  return folded + sums * (parts * rounds * kWarp * kPerLane - left_out);
}

}  // namespace
}  // namespace pb::cuda

namespace pb::kernels {

// The walks of a norm's pullback. Rows too long for registers are walked twice, by different formulas; for them the work of a
// single walk is reported as a lower bound.
Walks walks_of_norm_pullback(const Launch& launch) {
  const int64_t n = row_length(launch.in()), rows = row_count(launch.in());
  Walks walks{{{rows, n, n - 1}, {}}, 0};
  cuda::visit_float(launch.in().dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const cuda::Shared<T> shared(n);
    if (!shared.held) return;
    walks = cuda::walks_in_registers(cuda::teams_in_registers(shared.partition, shared.blocks, rows), shared.partition,
                                     cuda::kPackOf<T>);
    walks.affine = true;
  });
  return walks;
}

void executed_sums(const Launch& launch, int sums, Counts& work) {
  const int64_t n = row_length(launch.in()), rows = row_count(launch.in());
  cuda::visit_float(launch.in().dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (cuda::Shared<T>(n).held) work.adds += cuda::additions_of_sums<T>(rows, n, sums);
  });
}

void run_layer_norm_pullback(const Launch& launch) { cuda::norm_pullback<true>(launch); }
void run_rms_norm_pullback(const Launch& launch) { cuda::norm_pullback<false>(launch); }

}  // namespace pb::kernels
