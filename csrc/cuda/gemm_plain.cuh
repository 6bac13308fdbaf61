// Products without tensor cores, for all dtypes. Apart from a requested rounding of float32 factors, only the multiply-adds and the
// stored results round.
#pragma once
#include "cuda/async.cuh"
#include "cuda/gemm.cuh"
#include "cuda/multiply_add.cuh"

namespace pb::cuda {

// Tiles of kM × kN elements, in steps of kDepth along the contraction, kStages of which are in shared memory. A thread computes
// kTM × kTN sums. kGroups groups of threads divide the contraction among them: group g has the g-th of kGroups equal shares of a
// slice, and a step brings kPiece elements of every share. So each sum of a thread is one chain of multiply-adds over consecutive
// elements. kUnroll elements of a piece are one turn of the main loop.
template <int kM_, int kN_, int kDepth_, int kTM_, int kTN_, int kGroups_, int kStages_, int kBlocks_,
          int kUnroll_> struct Shape {
  static constexpr int kM = kM_, kN = kN_, kDepth = kDepth_, kTM = kTM_, kTN = kTN_, kGroups = kGroups_, kStages = kStages_,
                       kBlocks = kBlocks_, kUnroll = kUnroll_, kAcross = kN / kTN, kDown = kM / kTM, kGroup = kAcross * kDown,
                       kPiece = kDepth / kGroups, kThreadsOf = kGroup * kGroups;
  static constexpr bool kSums = kM < 128;  // the kernel can also sum the rows of a
  static_assert(kAcross % 8 == 0 && kDown % 4 == 0 && kDepth % kGroups == 0 && kThreadsOf % int(kWarp) == 0);
  static_assert(kernels::kOrderBlock % kPiece == 0 && kPiece % kUnroll == 0 && kM == kN &&
                (!kSums || kM * kGroups <= kThreadsOf));
};

// The tiles of choice.cpp, by number.
using SmallestTile = Shape<16, 16, 64, 2, 2, 4, 4, 2, 16>;
using SmallTile = Shape<32, 32, 32, 4, 4, 4, 3, 2, 8>;
using MediumTile = Shape<64, 64, 16, 4, 4, 1, 3, 2, 8>;
using LargeTile = Shape<128, 128, 8, 8, 8, 1, 4, 2, 2>;

template <class C, int kCount> struct __align__(sizeof(C) * kCount < 16 ? sizeof(C) * kCount : 16) Few {
  C v[kCount];
};

// Calls f(T) for the type T in which elements of the dtype are stored, as unsigned integers if C is one: modulo the size of a
// result, signed and unsigned integers have the same products and sums.
template <class C, Way kWay, class F> __device__ inline void visit_stored(DType dtype, int size, F&& f) {
  if constexpr (std::is_same_v<C, float> && kWay == Way::generic) {
    if (dtype == DType::f32) f(Tag<float>());
    else if (dtype == DType::f16) f(Tag<float16>());
    else f(Tag<bfloat16>());
  } else if constexpr (std::is_same_v<C, uint32_t>) {
    if (size == 4) f(Tag<uint32_t>());
    else if (size == 2) f(Tag<uint16_t>());
    else f(Tag<uint8_t>());
  } else if constexpr (std::is_same_v<C, uint64_t>) {
    if (dtype == DType::b8) f(Tag<bool>());
    else f(Tag<uint64_t>());
  } else {
    f(Tag<C>());
  }
}

// Brings the steps of one factor, kWide × kDepth elements each, to shared memory as [depth][outer] with rows kPitch elements
// apart. The rows are the pieces of all groups, one after another. A thread has kEach elements of a step: along the outer axis if
// the factor is contiguous along the depth, and along the depth otherwise, so that neighbouring threads read neighbouring
// elements.
//
//   contiguous along the depth: a warp reads 4 rows of 8 neighbours      along the outer axis: a warp reads 32 neighbours
template <class C, int kWide, class S> struct Loader {
  static constexpr int kDepth = S::kDepth, kPiece = S::kPiece, kThreadsOf = S::kThreadsOf;
  static constexpr int kPitch = kWide + 16 / int(sizeof(C)), kElements = kPitch * kDepth;
  static constexpr int kEach = kWide * kDepth / kThreadsOf, kPack = 16 / int(sizeof(C)), kPacks = kWide / kPack;
  static constexpr int kWarps = kThreadsOf / 32, kEights = kDepth / 8, kNextOuter = kWarps / kEights * 4,
                       kNextRow = kThreadsOf / kWide;
  static_assert(kWarps % kEights == 0 && kThreadsOf % kWide == 0 && (kPiece == kDepth || kNextRow % kPiece == 0));
  static_assert(sizeof(C) > 4 || kEach == kPack);  // a thread of a direct factor reads one pack

  const char* at;    // this thread's first element of the next step
  int64_t step;      // bytes from one of its elements to the next
  int target, next;  // the place of the first element in shared memory, and the distance to the next
  int depth, deep;   // the position of the first element in the slice at the first step, and the distance to the next
  unsigned exists;   // one bit per element: set if it is inside the matrix along the outer axis

  __device__ void begin(const Factor& f, Reading reading, bool packs, int64_t offset, int first, int outers, int64_t depths,
                        int share) {
    const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const bool down = reading == Reading::depth || reading == Reading::depth_packs;
    unsigned outer = packs ? thread % kPacks * kPack : thread % kWide, row = packs ? thread / kPacks : thread / kWide;
    if (down) row = warp % kEights * 8 + lane % 8, outer = warp / kEights * 4 + lane / 8;
    const unsigned next_outer = down ? kNextOuter : 0;
    deep = down ? 0 : kPiece == kDepth ? kNextRow : kNextRow / kPiece * share;
    next = down ? kNextOuter : kNextRow * kPitch;
    step = next_outer * f.outer + deep * f.depth;
    target = int(row * kPitch + outer);
    depth = int(row / kPiece * unsigned(share) + row % kPiece);
    outer += unsigned(first);
    exists = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) exists |= unsigned(outer + e * next_outer < unsigned(outers)) << e;
    at = f.data + offset + outer * f.outer + (depths + depth) * f.depth;
  }
  // left: the length of the slice less kPiece for each step before.
  __device__ bool has(int e, int left) const { return (exists >> e & 1) && depth + e * deep < left; }

  // Starts the asynchronous copy of the next step to `to`.
  __device__ void send(const Factor& f, bool packs, C* to, int left) {
    if (packs) {
      copy_async<16>(to + target, at, has(0, left));
    } else {
#pragma unroll
      for (int e = 0; e < kEach; ++e) copy_async<int(sizeof(C))>(to + target + e * next, at + e * step, has(e, left));
    }
    at += kPiece * f.depth;
  }

  // Loads the next step to registers.
  template <Way kWay> __device__ void fetch(C (&value)[kEach], const Factor& f, DType dtype, int size, int left) {
    visit_stored<C, kWay>(dtype, size, [&](auto tag) {
      using T = typename decltype(tag)::type;
#pragma unroll
      for (int e = 0; e < kEach; ++e) value[e] = has(e, left) ? C(*reinterpret_cast<const T*>(at + e * step)) : C(0);
    });
    at += kPiece * f.depth;
  }
  // Stores a step from registers to shared memory.
  __device__ void put(const C (&value)[kEach], C* to) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) to[target + e * next] = value[e];
  }
};

// A thread's position in the grid of its group's threads. A warp covers 4 × 8 positions.
template <class S> struct Seat {
  int group, down, across;
  __device__ Seat() {
    const unsigned thread = threadIdx.x % S::kGroup, warp = thread / 32, lane = thread % 32;
    group = int(threadIdx.x / S::kGroup);
    across = int(warp % (S::kAcross / 8) * 8 + lane % 8), down = int(warp / (S::kAcross / 8) * 4 + lane / 8);
  }
};

template <class C, class S, Way kWay, End kEnd> struct Plain {
  static constexpr bool kDirect = kWay == Way::direct;
  static constexpr int kStages = kDirect ? S::kStages : 2;
  using A = Loader<C, S::kM, S>;
  using B = Loader<C, S::kN, S>;
  static constexpr int kStage = A::kElements + B::kElements;
  // Neighbouring elements that are read at once.
  static constexpr int kVM = S::kTM < 4 ? S::kTM : 4, kVN = S::kTN < 4 ? S::kTN : 4;
  static constexpr int kPartsM = S::kTM / kVM, kPartsN = S::kTN / kVN, kRows = kVM * S::kDown;
  using Stored = std::conditional_t<kWay == Way::generic, void, C>;
  using Out = Exit<C, Stored, kEnd, S::kM, S::kN, kRows, S::kGroups, S::kThreadsOf>;
  static constexpr int kElements = kStages * kStage > S::kGroups* Out::kPart ? kStages* kStage : S::kGroups* Out::kPart;
  static constexpr size_t kBytes = kElements * sizeof(C);
};

// Computes a tile, or a slice of it. Per step of kDepth elements the block reads kDepth * (kM + kN) numbers (and as many of y as
// of a, if a is pulled back), and a thread reads kPiece * (kTM + kTN) numbers from shared memory for kPiece * kTM * kTN
// multiply-adds.
//
//             threads  numbers per multiply-add   blocks per multiprocessor   shared memory, direct
//   SmallestTile      256    1/8 read, 1 shared         2                           40 KiB
//   SmallTile         256    1/16, 1/2                  2                           27 KiB
//   MediumTile        256    1/32, 1/2                  2                           26 KiB
//   LargeTile         256    1/64, 1/4                  2                           33 KiB
//
// At two blocks per multiprocessor a thread may have 128 registers. The kernel writes the tile once. With slices it writes it once
// more for each slice, to working memory, and reads these.
template <class C, class S, Way kWay, End kEnd>
__global__ void __launch_bounds__(S::kThreadsOf, std::is_same_v<C, double> ? 1 : S::kBlocks)
    multiply_plain(const __grid_constant__ Group group) {
  using K = Plain<C, S, kWay, kEnd>;
  C* const shared = reinterpret_cast<C*>(pb_shared);
  const Problem& p = problem_of_block(group);
  const TilePosition position = position_of<S::kM, S::kN>(p);
  const int length = int(position.end - position.begin);  // fits an int, see kMostDepth
  const int share = S::kGroups == 1 ? length : int(p.slice / S::kGroups);
  const int steps = ((length < share ? length : share) + S::kPiece - 1) / S::kPiece;
  const bool packs_a = K::kDirect && p.reading_a == Reading::outer_packs,
             packs_b = K::kDirect && p.reading_b == Reading::outer_packs;
  typename K::A a;
  typename K::B b;
  a.begin(p.a, p.reading_a, packs_a, position.factors.a, position.row, p.m, position.begin, share);
  b.begin(p.b, p.reading_b, packs_b, position.factors.b, position.column, p.n, position.begin, share);

  const Seat<S> seat;
  Few<C, S::kTN> sums[S::kTM] = {};
  // The first threads sum the rows of a, one thread for each row and group.
  constexpr bool kSums = S::kSums && K::Out::kSums;
  const int sum_row = int(threadIdx.x % S::kM), sum_group = int(threadIdx.x / S::kM);
  const bool summing = kSums && p.sums && position.column == 0;
  C row_sum = 0;

  const auto multiply = [&](const C* stage) {
    const C* left = stage + seat.group * S::kPiece * K::A::kPitch + seat.down * K::kVM;
    const C* right = stage + K::A::kElements + seat.group * S::kPiece * K::B::kPitch + seat.across * K::kVN;
#pragma unroll 1
    for (int turn = 0; turn < S::kPiece / S::kUnroll; ++turn) {
#pragma unroll
      for (int d = 0; d < S::kUnroll; ++d) {
        Few<C, K::kVM> x[K::kPartsM];
        Few<C, K::kVN> y[K::kPartsN];
#pragma unroll
        for (int i = 0; i < K::kPartsM; ++i)
          x[i] = *reinterpret_cast<const Few<C, K::kVM>*>(left + d * K::A::kPitch + i * K::kRows);
#pragma unroll
        for (int j = 0; j < K::kPartsN; ++j)
          y[j] = *reinterpret_cast<const Few<C, K::kVN>*>(right + d * K::B::kPitch + j * K::kVN * S::kAcross);
#pragma unroll
        for (int i = 0; i < S::kTM; ++i)
#pragma unroll
          for (int j = 0; j < S::kTN; ++j) multiply_add(sums[i].v[j], x[i / K::kVM].v[i % K::kVM], y[j / K::kVN].v[j % K::kVN]);
      }
      left += S::kUnroll * K::A::kPitch, right += S::kUnroll * K::B::kPitch;
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
      for (unsigned q = threadIdx.x; q < S::kDepth * S::kN; q += S::kThreadsOf) {
        const int depth = int(q / S::kN), k = int(q % S::kN);
        if (depth % S::kPiece < left_of(depth / S::kPiece, s)) continue;
        stage[depth * K::A::kPitch + k] = C(0), stage[K::A::kElements + depth * K::B::kPitch + k] = C(-0.0);
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

  if constexpr (K::kDirect) {
    // A ring of kStages steps: while one is multiplied, the next kStages - 1 are on their way.
#pragma unroll 1
    for (int s = 1 - K::kStages; s < steps; ++s) {
      if (s >= 0) {
        __pipeline_wait_prior(K::kStages - 2);
        __syncthreads();
      }
      const int sent = s + K::kStages - 1;
      if (sent < steps) {
        C* const stage = shared + sent % K::kStages * K::kStage;
        const int left = length - sent * S::kPiece;
        a.send(p.a, packs_a, stage, left), b.send(p.b, packs_b, stage + K::A::kElements, left);
      }
      __pipeline_commit();
      if (s >= 0) step(shared + s % K::kStages * K::kStage, s);
    }
  } else {
    // Two stages: while one is multiplied, the next step is on its way to registers.
    constexpr bool kPulls = std::is_floating_point_v<C>;
    C value_a[K::A::kEach], value_b[K::B::kEach], value_y[K::A::kEach];
    const bool pulled = kPulls && p.pulled;
    typename K::A y;
    if (pulled) y.begin(p.y, p.reading_a, false, 0, position.row, p.m, position.begin, share);
#pragma unroll 1
    for (int s = -1; s < steps; ++s) {
      if (s >= 0) __syncthreads();
      if (s + 1 < steps) {
        const int left = length - (s + 1) * S::kPiece;
        a.template fetch<kWay>(value_a, p.a, p.dtype, p.size, left),
            b.template fetch<kWay>(value_b, p.b, p.dtype, p.size, left);
        if (pulled) y.template fetch<kWay>(value_y, p.y, p.dtype, p.size, left);
      }
      if (s >= 0) step(shared + s % 2 * K::kStage, s);
      if (s + 1 == steps) break;
      if constexpr (kPulls) {
        if (pulled)
          kernels::visit_activation(p.pulled, [&](auto, auto pullback) {
#pragma unroll
            for (int e = 0; e < K::A::kEach; ++e) value_a[e] = pullback(value_a[e], value_y[e], value_y[e]);
          });
      }
      if constexpr (std::is_same_v<C, float> && kWay == Way::generic) {
        if (p.rounding > kernels::Precision::tf32) {
#pragma unroll
          for (int e = 0; e < K::A::kEach; ++e)
            value_a[e] = round_to(p.rounding, value_a[e]), value_b[e] = round_to(p.rounding, value_b[e]);
        }
      }
      C* const stage = shared + (s + 1) % 2 * K::kStage;
      a.put(value_a, stage), b.put(value_b, stage + K::A::kElements);
    }
  }

  // Groups whose share is not empty.
  const int copies = S::kGroups == 1 || length <= share ? 1 : (length + share - 1) / share;
  if constexpr (kSums) {
    if (summing) {
      __syncthreads();
      if (sum_group < S::kGroups) shared[threadIdx.x] = row_sum;
      __syncthreads();
      if (sum_group == 0)
        K::Out::put_sum(p, position, sum_row,
                        add_pairs<S::kGroups>(copies, [&](int g) { return shared[g * S::kM + sum_row]; }));
    }
  }
  K::Out::store(p, position, shared, copies, [&](int part) {
    C* const to = shared + seat.group * K::Out::kPart + seat.down * K::kVM * K::Out::kPitch + seat.across * K::kVN;
#pragma unroll
    for (int i = 0; i < K::kVM; ++i)
#pragma unroll
      for (int j = 0; j < K::kPartsN; ++j) {
        Few<C, K::kVN> few;
#pragma unroll
        for (int e = 0; e < K::kVN; ++e) {
          few.v[e] = sums[i].v[j * K::kVN + e];
          // Registers have no addresses, so the part is chosen element by element.
          if constexpr (K::kPartsM == 2) few.v[e] = part ? sums[K::kVM + i].v[j * K::kVN + e] : few.v[e];
        }
        *reinterpret_cast<Few<C, K::kVN>*>(to + i * K::Out::kPitch + j * K::kVN * S::kAcross) = few;
      }
  });
}

template <class C, class S, Way kWay, End kEnd> void launch_plain(const Group& group, unsigned blocks) {
  start(multiply_plain<C, S, kWay, kEnd>, dim3(blocks), dim3(S::kThreadsOf), Plain<C, S, kWay, kEnd>::kBytes, group);
}

// The launchers of the tiles of a set, by number.
template <class C, Way kWay, End kEnd, class... Tiles> Launcher launcher_of(int tile) {
  static constexpr Launcher launchers[] = {launch_plain<C, Tiles, kWay, kEnd>...};
  return launchers[tile];
}

template <DType kComputed> Launcher plain_kernel(int tile, Way way, End end) {
  if constexpr (kComputed == DType::f32) {
    if (way == Way::generic) return launcher_of<float, Way::generic, End::any, SmallestTile, SmallTile, MediumTile>(tile);
    if (way == Way::pulled) return launcher_of<float, Way::pulled, End::gradient, SmallestTile, SmallTile, MediumTile>(tile);
    if (end == End::layer)
      return launcher_of<float, Way::direct, End::layer, SmallestTile, SmallTile, MediumTile, LargeTile>(tile);
    if (end == End::gradient)
      return launcher_of<float, Way::direct, End::gradient, SmallestTile, SmallTile, MediumTile, LargeTile>(tile);
    return launcher_of<float, Way::direct, End::any, SmallestTile, SmallTile, MediumTile, LargeTile>(tile);
  } else if constexpr (kComputed == DType::f64) {
    return launcher_of<double, Way::generic, End::any, SmallestTile, SmallTile, MediumTile>(tile);
  } else if constexpr (kComputed == DType::i32) {
    return launcher_of<uint32_t, Way::generic, End::any, SmallestTile, SmallTile>(tile);
  } else {  // int64, uint64 and bool
    return launcher_of<uint64_t, Way::generic, End::any, SmallestTile>(tile);
  }
}

}  // namespace pb::cuda
