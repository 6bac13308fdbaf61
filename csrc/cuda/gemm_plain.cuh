// Products without tensor cores, for all dtypes. Apart from a requested rounding of float32 factors, only the multiply-adds and the
// stored results round.
#pragma once
#include "cuda/async.cuh"
#include "cuda/gemm.cuh"

namespace pb::cuda {

// Tiles of kM × kN elements, in steps of kDepth along the contraction, kStages of which are in shared memory. A thread computes kTM
// × kTN sums. kGroups groups of threads divide the contraction among them: group g has the g-th of kGroups equal shares of a slice,
// and a step brings kPiece elements of every share. So each sum of a thread is one chain of multiply-adds over consecutive elements.
template <int kM_, int kN_, int kDepth_, int kTM_, int kTN_, int kGroups_, int kStages_, int kBlocks_, bool kSums_ = true>
struct Shape {
  static constexpr int kM = kM_, kN = kN_, kDepth = kDepth_, kTM = kTM_, kTN = kTN_, kGroups = kGroups_, kStages = kStages_,
                       kBlocks = kBlocks_, kAcross = kN / kTN, kDown = kM / kTM, kGroup = kAcross * kDown,
                       kPiece = kDepth / kGroups, kThreadsOf = kGroup * kGroups;
  static constexpr bool kSums = kSums_;  // true if the kernel can also sum the rows of a
  static_assert(kAcross % 8 == 0 && kDown % 4 == 0 && kDepth % kGroups == 0 && kThreadsOf % int(kWarp) == 0);
  static_assert(kernels::kOrderBlock % kPiece == 0 && (!kSums || kM * kGroups <= kThreadsOf));
};

template <class C, int kCount> struct __align__(sizeof(C) * kCount < 16 ? sizeof(C) * kCount : 16) Few {
  C v[kCount];
};

__device__ inline void multiply_add(float& sum, float a, float b) { sum = fmaf(a, b, sum); }
__device__ inline void multiply_add(double& sum, double a, double b) { sum = fma(a, b, sum); }
__device__ inline void multiply_add(uint32_t& sum, uint32_t a, uint32_t b) { sum += a * b; }
__device__ inline void multiply_add(uint64_t& sum, uint64_t a, uint64_t b) { sum += a * b; }

// Brings the steps of one factor, kWide × kDepth elements each, to shared memory as [depth][outer] with rows kPitch elements apart.
// The rows are the pieces of all groups, one after another. The elements of a thread depend on how the factor is read, so that
// neighbouring threads read neighbouring elements.
template <class C, int kWide, int kDepth, int kPiece, int kThreadsOf, bool kStaged> struct Loader {
  static constexpr int kPitch = kWide + 16 / int(sizeof(C)), kElements = kPitch * kDepth;
  static constexpr int kEach = kWide * kDepth / kThreadsOf, kPack = 16 / int(sizeof(C)), kPacks = kWide / kPack;
  // Warps along the depth: a warp reads 4 rows of 8 neighbours.
  static constexpr int kWarps = kThreadsOf / 32, kEights = kDepth / 8;
  static_assert(kWarps % kEights == 0 && kThreadsOf % kWide == 0 && kEach % kPack == 0 && kThreadsOf % kPacks == 0);

  const char *at, *y_at;  // this thread's first element of the next step
  int depth, target;      // position of that element in the slice at the first step, and in shared memory
  unsigned exists;        // one bit per element of the thread: set if it is inside the matrix along the outer axis
  Few<C, kEach> value, y;

  // The elements of a thread: how many there are, and the distance from one to the next along each axis.
  template <int kCount_, int kOuter_, int kDeep_> struct Pattern {
    static constexpr int kCount = kCount_, kOuter = kOuter_, kDeep = kDeep_, kNext = kDeep * kPitch + kOuter;
    static constexpr int kBytes = kCount == kEach ? int(sizeof(C)) : 16;
    static_assert(kCount == 1 || kPiece == kDepth || kDeep % kPiece == 0);
    // The distance along the contraction, if every group has `share` elements of it.
    __device__ static int deep(int share) { return kPiece == kDepth ? kDeep : kDeep / kPiece * share; }
  };
  __device__ static bool along_depth(Reading reading) { return reading == Reading::depth || reading == Reading::depth_packs; }
  template <class F> __device__ static void by(Reading reading, F&& f) {
    if (along_depth(reading)) f(Pattern<kEach, kWarps / kEights * 4, 0>());
    else if (kStaged || reading == Reading::outer) f(Pattern<kEach, 0, kThreadsOf / kWide>());
    else f(Pattern<kEach / kPack, 0, kThreadsOf / kPacks>());
  }

  __device__ void begin(const Factor& f, const Factor& beside, Reading reading, int64_t offset, int first, int outers,
                        int64_t depths, int share) {
    const int thread = int(threadIdx.x), lane = thread % 32, rest = thread / 32;
    int outer = thread % kWide, row = thread / kWide;
    if (along_depth(reading)) row = rest % kEights * 8 + lane % 8, outer = rest / kEights * 4 + lane / 8;
    else if (!kStaged && reading == Reading::outer_packs) outer = thread % kPacks * kPack, row = thread / kPacks;
    target = row * kPitch + outer;
    depth = row / kPiece * share + row % kPiece;
    exists = 0;
    by(reading, [&](auto pattern) {
      using P = decltype(pattern);
#pragma unroll
      for (int e = 0; e < P::kCount; ++e) exists |= unsigned(first + outer + e * P::kOuter < outers) << e;
    });
    at = f.data + offset + (first + outer) * f.outer + (depths + depth) * f.depth;
    if constexpr (kStaged) y_at = beside.data + (first + outer) * beside.outer + (depths + depth) * beside.depth;
  }

  // Starts the asynchronous copy of the next step to `to`. left: the length of the slice less kPiece for each step before.
  __device__ void send(const Factor& f, Reading reading, C* to, int left, int share) {
    by(reading, [&](auto pattern) {
      using P = decltype(pattern);
      const int deep = P::deep(share);
      const int64_t step = P::kOuter * f.outer + deep * f.depth;
#pragma unroll
      for (int e = 0; e < P::kCount; ++e) {
        const bool real = (exists >> e & 1) && depth + e * deep < left;
        // F.data is aligned, and is not read.
        copy_async<P::kBytes>(to + target + e * P::kNext, real ? at + e * step : f.data, real);
      }
    });
    at += kPiece * f.depth;
  }

  // fetch() loads the next step to registers, and put() stores it to shared memory later.
  __device__ void fetch(const Factor& f, const Factor& beside, Reading reading, DType dtype, bool pulled, int left, int share) {
    by(reading, [&](auto pattern) {
      using P = decltype(pattern);
      const int deep = P::deep(share);
      const int64_t step = P::kOuter * f.outer + deep * f.depth, y_step = P::kOuter * beside.outer + deep * beside.depth;
#pragma unroll
      for (int e = 0; e < P::kCount; ++e) {
        const bool real = (exists >> e & 1) && depth + e * deep < left;
        value.v[e] = real ? load_element<C>(dtype, at + e * step) : C(0);
        if constexpr (std::is_floating_point_v<C>) {
          if (pulled) y.v[e] = real ? load_element<C>(dtype, y_at + e * y_step) : C(0);
        }
      }
    });
    at += kPiece * f.depth, y_at += kPiece * beside.depth;
  }
  __device__ void put(Reading reading, C* to, int pulled, kernels::Precision rounding) {
    if constexpr (std::is_floating_point_v<C>) {
      if (pulled)
        kernels::visit_activation(pulled, [&](auto, auto pullback) {
#pragma unroll
          for (int e = 0; e < kEach; ++e) value.v[e] = pullback(value.v[e], y.v[e], y.v[e]);
        });
    }
    if constexpr (std::is_same_v<C, float>) {
      if (rounding > kernels::Precision::tf32) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) value.v[e] = round_to(rounding, value.v[e]);
      }
    }
    by(reading, [&](auto pattern) {
      using P = decltype(pattern);
#pragma unroll
      for (int e = 0; e < P::kCount; ++e) to[target + e * P::kNext] = value.v[e];
    });
  }
};

template <class C, class S, bool kStaged> struct Plain {
  static constexpr int kStages = kStaged || sizeof(C) == 8 ? 2 : S::kStages;
  using A = Loader<C, S::kM, S::kDepth, S::kPiece, S::kThreadsOf, kStaged>;
  using B = Loader<C, S::kN, S::kDepth, S::kPiece, S::kThreadsOf, kStaged>;
  static constexpr int kStage = A::kElements + B::kElements;
  // Neighbouring elements that are read at once.
  static constexpr int kVM = S::kTM < 4 ? S::kTM : 4, kVN = S::kTN < 4 ? S::kTN : 4;
  static constexpr int kPartsM = S::kTM / kVM, kPartsN = S::kTN / kVN, kRows = kVM * S::kDown;
  using Out = Exit<C, S::kM, S::kN, kRows, S::kGroups, S::kThreadsOf>;
  static constexpr int kElements = kStages * kStage > S::kGroups* Out::kPart ? kStages* kStage : S::kGroups* Out::kPart;
  static constexpr size_t kBytes = kElements * sizeof(C);
};

// This thread's position in the grid of its group's threads. A warp covers 4 × 8 positions.
template <class S> struct Seat {
  int group, down, across;
  __device__ Seat() {
    const int thread = int(threadIdx.x) % S::kGroup, warp = thread / 32, lane = thread % 32;
    group = int(threadIdx.x) / S::kGroup;
    across = warp % (S::kAcross / 8) * 8 + lane % 8, down = warp / (S::kAcross / 8) * 4 + lane / 8;
  }
};

template <class C, class S, bool kStaged>
__global__ void __launch_bounds__(S::kThreadsOf, std::is_same_v<C, double> ? 1 : S::kBlocks)
    multiply_plain(const __grid_constant__ Group group) {
  using K = Plain<C, S, kStaged>;
  C* const shared = reinterpret_cast<C*>(pb_shared);
  const Problem& p = group.problems[group.count > 1 && blockIdx.x >= group.problems[1].first];
  const TilePosition position = position_of<S::kM, S::kN>(p);
  const int length = int(position.end - position.begin), share = int(p.slice / S::kGroups);  // fit ints, see kMostDepth
  const int steps = ((length < share ? length : share) + S::kPiece - 1) / S::kPiece;

  typename K::A a;
  typename K::B b;
  a.begin(p.a, p.y, p.reading_a, position.a, position.row, p.m, position.begin, share);
  b.begin(p.b, p.b, p.reading_b, position.b, position.column, p.n, position.begin, share);

  const Seat<S> seat;
  Few<C, S::kTN> sums[S::kTM] = {};
  // The first threads sum the rows of a, one thread for each row and group.
  const bool summing = S::kSums && p.sums && position.column == 0;
  const int sum_row = int(threadIdx.x) % S::kM, sum_group = int(threadIdx.x) / S::kM;
  C row_sum = 0;

  const auto multiply = [&](const C* stage) {
    const C *left = stage + seat.down * K::kVM, *right = stage + K::A::kElements + seat.across * K::kVN;
#pragma unroll
    for (int d = 0; d < S::kPiece; ++d) {
      const int depth = seat.group * S::kPiece + d;
      Few<C, K::kVM> x[K::kPartsM];
      Few<C, K::kVN> y[K::kPartsN];
#pragma unroll
      for (int i = 0; i < K::kPartsM; ++i)
        x[i] = *reinterpret_cast<const Few<C, K::kVM>*>(left + depth * K::A::kPitch + i * K::kRows);
#pragma unroll
      for (int j = 0; j < K::kPartsN; ++j)
        y[j] = *reinterpret_cast<const Few<C, K::kVN>*>(right + depth * K::B::kPitch + j * K::kVN * S::kAcross);
#pragma unroll
      for (int i = 0; i < S::kTM; ++i)
#pragma unroll
        for (int j = 0; j < S::kTN; ++j) multiply_add(sums[i].v[j], x[i / K::kVM].v[i % K::kVM], y[j / K::kVN].v[j % K::kVN]);
    }
  };
  // What is left of the share of a group before step s, which is 0 or less if the share has ended.
  const auto left_of = [&](int of, int s) {
    const int rest = length - of * share;
    return (rest < share ? rest : share) - s * S::kPiece;
  };
  // Makes the padding of step s, beyond the shares of the groups, 0 in a and -0 in b. Adding 0 * -0 changes no sum; adding 0 * 0
  // would turn a sum of -0 into 0.
  const auto blank = [&](C* stage, int s) {
    if constexpr (std::is_floating_point_v<C>) {
      if (left_of(S::kGroups - 1, s) >= S::kPiece) return;  // the last group has the least left
#pragma unroll 1
      for (int depth = 0; depth < S::kDepth; ++depth) {
        if (depth % S::kPiece < left_of(depth / S::kPiece, s)) continue;
        for (int k = int(threadIdx.x); k < S::kM; k += S::kThreadsOf) stage[depth * K::A::kPitch + k] = C(0);
        for (int k = int(threadIdx.x); k < S::kN; k += S::kThreadsOf)
          stage[K::A::kElements + depth * K::B::kPitch + k] = C(-0.0);
      }
      __syncthreads();
    }
  };
  const auto step = [&](C* stage, int s) {
    blank(stage, s);
    multiply(stage);
    if (summing && sum_group < S::kGroups) {
      const int pieces = left_of(sum_group, s);
#pragma unroll 8
      for (int d = 0; d < S::kPiece && d < pieces; ++d) row_sum += stage[(sum_group * S::kPiece + d) * K::A::kPitch + sum_row];
    }
  };

  if constexpr (kStaged) {
    const bool pulled = p.pulled != 0;
    const auto fetch = [&](int s) {
      const int left = length - s * S::kPiece;
      a.fetch(p.a, p.y, p.reading_a, p.dtype, pulled, left, share), b.fetch(p.b, p.b, p.reading_b, p.dtype, false, left, share);
    };
    const auto put = [&](int s) {
      C* const stage = shared + s % 2 * K::kStage;
      a.put(p.reading_a, stage, p.pulled, p.rounding), b.put(p.reading_b, stage + K::A::kElements, 0, p.rounding);
    };
    if (steps > 0) fetch(0), put(0);
    for (int s = 0; s < steps; ++s) {
      __syncthreads();
      if (s + 1 < steps) fetch(s + 1);
      step(shared + s % 2 * K::kStage, s);
      if (s + 1 < steps) put(s + 1);
    }
  } else {
    const auto send = [&](int s) {
      if (s < steps) {
        C* const stage = shared + s % K::kStages * K::kStage;
        const int left = length - s * S::kPiece;
        a.send(p.a, p.reading_a, stage, left, share), b.send(p.b, p.reading_b, stage + K::A::kElements, left, share);
      }
      __pipeline_commit();
    };
    for (int s = 0; s < K::kStages - 1; ++s) send(s);
    for (int s = 0; s < steps; ++s) {
      __pipeline_wait_prior(K::kStages - 2);
      __syncthreads();
      send(s + K::kStages - 1);
      step(shared + s % K::kStages * K::kStage, s);
    }
  }

  const int copies =
      S::kGroups == 1 || length <= share ? 1 : (length + share - 1) / share;  // of groups whose share is not empty
#pragma unroll
  for (int part = 0; part < K::kPartsM; ++part) {
    __syncthreads();
    C* const to = shared + seat.group * K::Out::kPart + seat.down * K::kVM * K::Out::kPitch + seat.across * K::kVN;
#pragma unroll
    for (int i = 0; i < K::kVM; ++i)
#pragma unroll
      for (int j = 0; j < K::kPartsN; ++j) {
        Few<C, K::kVN> few;
#pragma unroll
        for (int e = 0; e < K::kVN; ++e) few.v[e] = sums[part * K::kVM + i].v[j * K::kVN + e];
        *reinterpret_cast<Few<C, K::kVN>*>(to + i * K::Out::kPitch + j * K::kVN * S::kAcross) = few;
      }
    __syncthreads();
    K::Out::part(p, position, shared, part * K::kRows, copies);
  }
  if constexpr (std::is_floating_point_v<C>) {
    if (summing) {
      __syncthreads();
      if (sum_group < S::kGroups) shared[threadIdx.x] = row_sum;
      __syncthreads();
      if (sum_group == 0)
        K::Out::put_sum(p, position, sum_row,
                        add_pairs<S::kGroups>(copies, [&](int g) { return shared[g * S::kM + sum_row]; }));
    }
  }
  K::Out::fold(p, position);
}

template <class C, class S, bool kStaged> void launch_plain(const Group& group, unsigned blocks) {
  start(multiply_plain<C, S, kStaged>, dim3(blocks), dim3(S::kThreadsOf), Plain<C, S, kStaged>::kBytes, group);
}
template <class C, class S, bool kStaged> Tile plain_tile(float latency, float throughput) {
  return {launch_plain<C, S, kStaged>, S::kM, S::kN, S::kDepth, S::kGroups, S::kSums, latency, throughput};
}

using Smallest = Shape<16, 16, 64, 2, 2, 4, 4, 2>;
using Small = Shape<32, 32, 32, 4, 4, 4, 3, 2>;
using Medium = Shape<64, 64, 16, 4, 4, 1, 3, 2>;
using Large = Shape<128, 128, 8, 8, 8, 1, 4, 2, false>;

template <DType kComputed> Tiles plain_tiles(bool staged) {
  if constexpr (kComputed == DType::f32) {
    using C = float;
    static const Tile direct[] = {plain_tile<C, Smallest, false>(10, 5), plain_tile<C, Small, false>(24, 14),
                                  plain_tile<C, Medium, false>(60, 45), plain_tile<C, Large, false>(150, 142)};
    static const Tile converting[] = {plain_tile<C, Smallest, true>(12, 6), plain_tile<C, Small, true>(30, 18),
                                      plain_tile<C, Medium, true>(75, 60)};
    return staged ? Tiles{converting, 3} : Tiles{direct, 4};
  } else if constexpr (kComputed == DType::f64) {
    using C = double;
    static const Tile direct[] = {plain_tile<C, Smallest, false>(20, 10), plain_tile<C, Small, false>(48, 28),
                                  plain_tile<C, Medium, false>(120, 90)};
    static const Tile pulled[] = {plain_tile<C, Smallest, true>(24, 12), plain_tile<C, Small, true>(60, 36),
                                  plain_tile<C, Medium, true>(150, 120)};
    return staged ? Tiles{pulled, 3} : Tiles{direct, 3};
  } else if constexpr (kComputed == DType::i32) {
    using C = uint32_t;
    static const Tile direct[] = {plain_tile<C, Smallest, false>(16, 8), plain_tile<C, Small, false>(40, 24)};
    static const Tile narrow[] = {plain_tile<C, Smallest, true>(20, 10), plain_tile<C, Small, true>(50, 30)};
    return staged ? Tiles{narrow, 2} : Tiles{direct, 2};
  } else {  // int64, uint64 and bool
    using C = uint64_t;
    static const Tile direct[] = {plain_tile<C, Smallest, false>(40, 24)};
    static const Tile bits[] = {plain_tile<C, Smallest, true>(40, 24)};
    return staged ? Tiles{bits, 1} : Tiles{direct, 1};
  }
}

}  // namespace pb::cuda
