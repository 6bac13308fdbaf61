// Products on tensor cores, with sums in float32. float16 and bfloat16 factors are used as they are; float32 factors are rounded to
// one of these formats or to tf32.
#pragma once
#include "cuda/gemm.cuh"
#include "cuda/mma.cuh"

namespace pb::cuda {

// The number formats. A word (a register of a fragment) holds kPer elements that are neighbours along the contraction.
struct Tf32 {
  static constexpr int kPer = 1;
  using Number = float;
  __device__ static uint32_t word(float x, float) { return to_tf32(x); }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_tf32(d, a, b); }
};
struct Bf16 {
  static constexpr int kPer = 2;
  using Number = bfloat16;
  __device__ static float number(uint32_t bits) { return float(bfloat16::from_bits(uint16_t(bits))); }
  __device__ static uint32_t word(float x, float y) { return uint32_t(bfloat16(x).bits) | uint32_t(bfloat16(y).bits) << 16; }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_bf16(d, a, b); }
};
struct F16 {
  static constexpr int kPer = 2;
  using Number = float16;
  __device__ static float number(uint32_t bits) { return float(float16::from_bits(uint16_t(bits))); }
  __device__ static uint32_t word(float x, float y) { return uint32_t(float16(x).bits) | uint32_t(float16(y).bits) << 16; }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_f16(d, a, b); }
};

// Layout of one step of the contraction in shared memory: 16 rows of words, with one word per row for each element of the outer
// axis. Rows are 8 banks apart, and the columns of each group of four rows are shifted by 8 more (by XOR). Therefore neither the
// loads of fragments (4 rows of 8 neighbours) nor the stores (16 rows of 8 neighbours, or packs of 4 in a row) have bank conflicts.
constexpr int kWords = 16;
__device__ inline int column_of(int word, int outer) { return outer ^ (word >> 2 & 3) << 3; }
// column_of(word, outer + more) for the fragments of a warp, whose first element of the outer axis is a multiple of kWarpWide.
// more: a multiple of 8 that the compiler knows. If kWarpWide is a multiple of 32, the shift moves nothing but `more`.
template <int kWarpWide> __device__ inline int column_of(int word, int outer, int more) {
  if constexpr (kWarpWide % 32 == 0) return outer + (more ^ (word >> 2 & 3) << 3);
  else return column_of(word, outer + more);
}

// Brings the steps of one factor to shared memory: fetch() loads a step to registers, and put() stores it later. A quad is four
// words that are neighbours along the contraction or along the outer axis, whichever the factor is contiguous along. It is read in
// packs of 16 bytes, or of 8 along the outer axis of 16-bit numbers.
template <class Kind, class Source, int kWide, int kThreadsOf> struct CoreLoader {
  static constexpr int kPer = Kind::kPer, kPitch = kWide + 8, kElements = kPitch * kWords;
  static constexpr int kQuads = kWide * kWords / 4 / kThreadsOf, kSize = int(sizeof(Source));
  // Per quad: elements, and 32-bit registers that hold them as loaded.
  static constexpr int kNumbers = 4 * kPer, kRaw = kNumbers * kSize / 4;
  static_assert(kQuads * 4 * kThreadsOf == kWide * kWords && kThreadsOf % 32 == 0 && kThreadsOf % (kWide / 4) == 0);
  using Raw = uint32_t[kQuads][kRaw];

  const char* at;     // this thread's first element of the next step
  int64_t next_quad;  // bytes to its next quad
  int outer, word;    // the place of its first quad
  bool down;          // contiguous along the contraction
  unsigned exists;    // four bits per quad: set if the element along the outer axis is inside the matrix

  // The distance to the thread's next quad, along the outer axis or in words along the contraction.
  static constexpr int kNextOuter = kThreadsOf / 4, kNextWord = kThreadsOf / (kWide / 4);

  __device__ void begin(const Factor& f, Reading reading, int64_t offset, int first, int outers, int64_t depths) {
    const unsigned thread = threadIdx.x;
    down = reading == Reading::depth || reading == Reading::depth_packs;
    outer = int(down ? thread / 4 : thread % (kWide / 4) * 4), word = int(down ? thread % 4 * 4 : thread / (kWide / 4));
    exists = 0;
#pragma unroll
    for (int i = 0; i < 4 * kQuads; ++i) {
      const int element = outer + (down ? i / 4 * kNextOuter : i % 4);
      exists |= unsigned(first + element < outers) << i;
    }
    next_quad = down ? kNextOuter * f.outer : kNextWord * kPer * f.depth;
    at = f.data + offset + unsigned(first + outer) * f.outer + (depths + word * kPer) * f.depth;
  }

  template <class Pack> __device__ static void load(uint32_t* to, const char* from) {
    const Pack pack = *reinterpret_cast<const Pack*>(from);
    memcpy(to, &pack, sizeof pack);
  }

  // Loads the next step to registers. left: the number of elements of the contraction that remain in the slice.
  __device__ void fetch(Raw& raw, const Factor& f, int left) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
#pragma unroll
      for (int i = 0; i < kRaw; ++i) raw[q][i] = 0;
      const char* const from = at + q * next_quad;
      const unsigned real = exists >> 4 * q;
      const int rest = left - (word + (down ? 0 : q * kNextWord)) * kPer;
      if (!(real & 1) || rest <= 0) continue;
      if (down) {
#pragma unroll
        for (int i = 0; i < kRaw / 4; ++i) load<uint4>(raw[q] + 4 * i, from + 16 * i);
      } else {
#pragma unroll
        for (int i = 0; i < kPer; ++i)
          if (i < rest) load<std::conditional_t<kSize == 4, uint4, uint2>>(raw[q] + i * kSize, from + i * f.depth);
      }
    }
    at += kWords * kPer * f.depth;
  }

  // Applies the pullback of an activation with outputs y to 16-bit numbers.
  __device__ static void pull(Raw& raw, const Raw& y, int activation) {
    kernels::visit_activation(activation, [&](auto, auto pullback) {
#pragma unroll
      for (int i = 0; i < kQuads * kRaw; ++i) {
        uint32_t& pair = raw[i / kRaw][i % kRaw];
        float pulled[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float g = Kind::number(pair >> 16 * k), of = Kind::number(y[i / kRaw][i % kRaw] >> 16 * k);
          pulled[k] = pullback(g, of, of);
        }
        pair = Kind::word(pulled[0], pulled[1]);
      }
    });
  }

  __device__ static uint32_t word_of(const uint32_t (&from)[kRaw], bool goes_down, int j) {
    if constexpr (kSize == 4) {
      const int next = goes_down ? j * kPer : j;
      return Kind::word(__uint_as_float(from[next]), __uint_as_float(from[goes_down ? next + kPer - 1 : 4 * (kPer - 1) + j]));
    } else {
      return goes_down ? from[j] : __byte_perm(from[j / 2], from[2 + j / 2], j % 2 ? 0x7632 : 0x5410);
    }
  }

  __device__ void put(const Raw& raw, uint32_t* to) const {
    if (down) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          to[(word + j) * kPitch + column_of(word + j, outer + q * kNextOuter)] = word_of(raw[q], true, j);
    } else {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const int row = word + q * kNextWord;
        uint4 four;
        four.x = word_of(raw[q], false, 0), four.y = word_of(raw[q], false, 1);
        four.z = word_of(raw[q], false, 2), four.w = word_of(raw[q], false, 3);
        *reinterpret_cast<uint4*>(to + row * kPitch + column_of(row, outer)) = four;
      }
    }
  }
};

// Tiles of kM × kN elements, computed by kDown × kAcross warps, and stored in kParts parts.
template <int kM_, int kN_, int kDown_, int kAcross_, int kParts_, int kBlocks_> struct CoreShape {
  static constexpr int kM = kM_, kN = kN_, kDown = kDown_, kAcross = kAcross_, kParts = kParts_, kBlocks = kBlocks_,
                       kThreadsOf = 32 * kDown * kAcross, kWarpM = kM / kDown, kWarpN = kN / kAcross, kRows = kM / kParts;
  static_assert(kWarpM % 16 == 0 && kWarpN % 8 == 0 && (kParts == 1 || kParts == kDown));
};

// The tiles of choice.cpp, by number.
using SmallCores = CoreShape<32, 32, 2, 2, 1, 4>;
using MediumCores = CoreShape<64, 64, 2, 2, 1, 3>;
using LargeCores = CoreShape<128, 128, 2, 4, 2, 1>;

template <class Kind, class Source, class S, End kEnd> struct Cores {
  using A = CoreLoader<Kind, Source, S::kM, S::kThreadsOf>;
  using B = CoreLoader<Kind, Source, S::kN, S::kThreadsOf>;
  using Stored = std::conditional_t<sizeof(Source) == 4, float, typename Kind::Number>;
  using Out = Exit<float, Stored, kEnd, S::kM, S::kN, S::kRows, 1, S::kThreadsOf>;
  static constexpr int kStage = A::kElements + B::kElements;
  static constexpr size_t kBytes = 4 * size_t(2 * kStage > Out::kPart ? 2 * kStage : Out::kPart);
};

// Computes a tile, or a slice of it. Per step of 16 words (32 numbers of 16 bits, or 16 of tf32) the block reads kM + kN rows of
// words from global memory to registers while it multiplies the step before, and has two steps in shared memory. A warp reads
// 16 * (kWarpM + kWarpN) words from shared memory for kWarpM / 16 * kWarpN / 8 * 2 instructions of the tensor cores.
//
//             warps  words per warp and step   instructions   blocks per multiprocessor   shared memory
//   Small         4    32 * 16                    4             4                           10 KiB
//   Medium        4    64 * 16                   16             3                           18 KiB
//   Large         8    96 * 16                   32             1                           34 KiB
//
// The kernel writes the tile once. With slices it writes it once more for each slice, to working memory, and reads these.
template <class Kind, class Source, class S, End kEnd>
__global__ void __launch_bounds__(S::kThreadsOf, S::kBlocks) multiply_cores(const __grid_constant__ Group group) {
  if constexpr (!kHasMma) return __trap();
  using K = Cores<Kind, Source, S, kEnd>;
  constexpr int kDepth = kWords * Kind::kPer, kTilesM = S::kWarpM / 16, kTilesN = S::kWarpN / 8;
  constexpr bool kSums = sizeof(Source) == 2 && K::Out::kSums;  // the kernel also sums the rows of a, and pulls a back
  uint32_t* const shared = reinterpret_cast<uint32_t*>(pb_shared);
  const Problem& p = problem_of_block(group);
  const TilePosition position = position_of<S::kM, S::kN>(p);
  const int length = int(position.end - position.begin), steps = (length + kDepth - 1) / kDepth;

  typename K::A a, beside;
  typename K::B b;
  typename K::A::Raw raw_a, raw_y;
  typename K::B::Raw raw_b;
  const bool pulled = kSums && p.pulled;
  a.begin(p.a, p.reading_a, position.factors.a, position.row, p.m, position.begin);
  b.begin(p.b, p.reading_b, position.factors.b, position.column, p.n, position.begin);
  if (pulled) beside.begin(p.y, p.reading_a, 0, position.row, p.m, position.begin);

  const int thread = int(threadIdx.x), warp = int(threadIdx.x / 32), group_of = int(threadIdx.x % 32 / 4),
            in_group = int(threadIdx.x % 4);
  const int row = warp / S::kAcross * S::kWarpM + group_of, column = warp % S::kAcross * S::kWarpN + group_of;
  float sums[kTilesM][kTilesN][4] = {};
  float row_sum = 0;
  const bool summing = kSums && p.sums && position.column == 0 && thread < S::kM;

#pragma unroll 1
  for (int s = -1; s < steps; ++s) {
    if (s >= 0) __syncthreads();
    if (s + 1 < steps) {
      const int left = length - (s + 1) * kDepth;
      a.fetch(raw_a, p.a, left), b.fetch(raw_b, p.b, left);
      if (pulled) beside.fetch(raw_y, p.y, left);
    }
    if (s >= 0) {
      const uint32_t* const stage = shared + s % 2 * K::kStage;
#pragma unroll
      for (int k = 0; k < kWords; k += 8) {
        uint32_t x[kTilesM][4], y[kTilesN][2];
#pragma unroll
        for (int i = 0; i < kTilesM; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            x[i][e] =
                stage[(k + e / 2 * 4 + in_group) * K::A::kPitch + column_of<S::kWarpM>(k + e / 2 * 4, row, 16 * i + e % 2 * 8)];
#pragma unroll
        for (int j = 0; j < kTilesN; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            y[j][e] =
                stage[K::A::kElements + (k + e * 4 + in_group) * K::B::kPitch + column_of<S::kWarpN>(k + e * 4, column, 8 * j)];
#pragma unroll
        for (int i = 0; i < kTilesM; ++i)
#pragma unroll
          for (int j = 0; j < kTilesN; ++j) Kind::multiply(sums[i][j], x[i], y[j]);
      }
      if constexpr (kSums) {
        if (summing) {
#pragma unroll
          for (int k = 0; k < kWords; ++k) {
            const uint32_t pair = stage[k * K::A::kPitch + column_of(k, thread)];
            row_sum += Kind::number(pair) + Kind::number(pair >> 16);
          }
        }
      }
    }
    if (s + 1 == steps) break;
    uint32_t* const stage = shared + (s + 1) % 2 * K::kStage;
    if constexpr (kSums) {
      if (pulled) K::A::pull(raw_a, raw_y, p.pulled);
    }
    a.put(raw_a, stage), b.put(raw_b, stage + K::A::kElements);
  }

  if (summing) K::Out::put_sum(p, position, thread, row_sum);
  float* const out = reinterpret_cast<float*>(pb_shared);
  K::Out::store(p, position, out, 1, [&](int part) {
    if (S::kParts > 1 && warp / S::kAcross != part) return;
    const int first = column - group_of + 2 * in_group;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i)
#pragma unroll
      for (int j = 0; j < kTilesN; ++j)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          float2 pair;
          pair.x = sums[i][j][e], pair.y = sums[i][j][e + 1];
          const int at = row - part * S::kRows + 16 * i + 4 * e;
          *reinterpret_cast<float2*>(out + at * K::Out::kPitch + first + 8 * j) = pair;
        }
  });
}

template <class Kind, class Source, class S, End kEnd> void launch_cores(const Group& group, unsigned blocks) {
  start(multiply_cores<Kind, Source, S, kEnd>, dim3(blocks), dim3(S::kThreadsOf), Cores<Kind, Source, S, kEnd>::kBytes, group);
}

template <class Kind, bool kRounds> Launcher core_kernel(int tile, End end) {
  using Source = std::conditional_t<kRounds, float, uint16_t>;
  static constexpr Launcher layers[] = {launch_cores<Kind, Source, SmallCores, End::layer>,
                                        launch_cores<Kind, Source, MediumCores, End::layer>,
                                        launch_cores<Kind, Source, LargeCores, End::layer>};
  static constexpr Launcher others[] = {launch_cores<Kind, Source, SmallCores, End::any>,
                                        launch_cores<Kind, Source, MediumCores, End::any>,
                                        launch_cores<Kind, Source, LargeCores, End::any>};
  return end == End::layer ? layers[tile] : others[tile];
}

}  // namespace pb::cuda
