// Products on tensor cores, with sums in float32. float16 and bfloat16 factors are used as they are; float32 factors are rounded to
// one of these formats or to tf32.
#pragma once
#include "cuda/gemm.cuh"
#include "cuda/mma.cuh"

namespace pb::cuda {

// The number formats. A word (a register of a fragment) holds kPer elements that are neighbours along the contraction.
struct Tf32 {
  static constexpr int kPer = 1;
  __device__ static uint32_t word(float x, float) { return to_tf32(x); }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_tf32(d, a, b); }
};
struct Bf16 {
  static constexpr int kPer = 2;
  __device__ static float number(uint32_t bits) { return float(bfloat16::from_bits(uint16_t(bits))); }
  __device__ static uint32_t word(float x, float y) { return uint32_t(bfloat16(x).bits) | uint32_t(bfloat16(y).bits) << 16; }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_bf16(d, a, b); }
};
struct F16 {
  static constexpr int kPer = 2;
  __device__ static float number(uint32_t bits) { return float(float16::from_bits(uint16_t(bits))); }
  __device__ static uint32_t word(float x, float y) { return uint32_t(float16(x).bits) | uint32_t(float16(y).bits) << 16; }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_f16(d, a, b); }
};

// Layout of one step of the contraction in shared memory: 16 rows of words, with one word per row for each element of the outer
// axis. Rows are 8 banks apart, and the columns of each group of four rows are shifted by 8 more (by XOR). Therefore neither the
// loads of fragments (4 rows of 8 neighbours) nor the stores (16 rows of 8 neighbours, or packs of 4 in a row) have bank conflicts.
constexpr int kWords = 16;
__device__ inline int column_of(int word, int outer) { return outer ^ (word >> 2 & 3) << 3; }

// Brings the steps of one factor to shared memory: fetch() loads a step to registers, and put() stores it later. A quad is four
// words that are neighbours along the contraction or along the outer axis.
template <class Kind, class Source, int kWide, int kThreadsOf> struct CoreLoader {
  static constexpr int kPer = Kind::kPer, kPitch = kWide + 8, kElements = kPitch * kWords;
  static constexpr int kQuads = kWide * kWords / 4 / kThreadsOf, kSize = int(sizeof(Source));
  // Per quad: elements, and 32-bit registers that hold them as loaded.
  static constexpr int kNumbers = 4 * kPer, kRaw = kNumbers * kSize / 4;
  static_assert(kQuads * 4 * kThreadsOf == kWide * kWords && kThreadsOf % 32 == 0 && kThreadsOf % (kWide / 4) == 0);

  const char *at, *y_at;
  int outer, word;  // position of the thread's first quad
  unsigned exists;  // one bit per element along the outer axis: set if it is inside the matrix
  uint32_t raw[kQuads][kRaw], y_raw[kQuads][kRaw];

  __device__ static bool down(Reading reading) { return reading == Reading::depth || reading == Reading::depth_packs; }
  // The distance to the thread's next quad, along the outer axis or in words along the contraction.
  static constexpr int kNextOuter = kThreadsOf / 4, kNextWord = kThreadsOf / (kWide / 4);

  __device__ void begin(const Factor& f, const Factor& beside, Reading reading, int64_t offset, int first, int outers,
                        int64_t depths) {
    const int thread = int(threadIdx.x);
    exists = 0;
    if (down(reading)) {
      outer = thread / 4, word = thread % 4 * 4;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) exists |= unsigned(first + outer + q * kNextOuter < outers) << q;
    } else {
      outer = thread % (kWide / 4) * 4, word = thread / (kWide / 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) exists |= unsigned(first + outer + j < outers) << j;
    }
    at = f.data + offset + (first + outer) * f.outer + (depths + word * kPer) * f.depth;
    y_at = beside.data + (first + outer) * beside.outer + (depths + word * kPer) * beside.depth;
  }

  __device__ static void set(uint32_t (&to)[kRaw], int i, const char* from) {
    if constexpr (kSize == 4) to[i] = *reinterpret_cast<const uint32_t*>(from);
    else to[i / 2] |= uint32_t(*reinterpret_cast<const uint16_t*>(from)) << (i % 2 * 16);
  }
  template <class Pack> __device__ static void set_pack(uint32_t* to, const char* from) {
    const Pack pack = *reinterpret_cast<const Pack*>(from);
    memcpy(to, &pack, sizeof pack);
  }

  // Reads one quad. left: the number of elements of the contraction from the quad's first one to the end of the slice.
  __device__ static void read(uint32_t (&to)[kRaw], const Factor& f, Reading reading, const char* from, unsigned real,
                              int left) {
#pragma unroll
    for (int i = 0; i < kRaw; ++i) to[i] = 0;
    if (reading == Reading::depth_packs) {
      if (!(real & 1) || left <= 0) return;
#pragma unroll
      for (int i = 0; i < kRaw / 4; ++i) set_pack<uint4>(to + 4 * i, from + 16 * i);
    } else if (reading == Reading::outer_packs) {
      if (!(real & 1)) return;
      using Pack = std::conditional_t<kSize == 4, uint4, uint2>;
#pragma unroll
      for (int i = 0; i < kPer; ++i)
        if (i < left) set_pack<Pack>(to + i * kSize, from + i * f.depth);
    } else if (reading == Reading::depth) {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i)
        if ((real & 1) && i < left) set(to, i, from + i * f.depth);
    } else {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i)
        if ((real >> i % 4 & 1) && i / 4 < left) set(to, i, from + i / 4 * f.depth + i % 4 * f.outer);
    }
  }

  // Loads the next step to registers. left: the number of elements of the contraction that remain in the slice.
  __device__ void fetch(const Factor& f, const Factor& beside, Reading reading, bool pulled, int left) {
    const bool goes_down = down(reading);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int next_outer = goes_down ? q * kNextOuter : 0, next_word = goes_down ? 0 : q * kNextWord;
      const unsigned real = goes_down ? exists >> q : exists;
      const int rest = left - (word + next_word) * kPer;
      read(raw[q], f, reading, at + next_outer * f.outer + next_word * kPer * f.depth, real, rest);
      if (pulled)
        read(y_raw[q], beside, reading, y_at + next_outer * beside.outer + next_word * kPer * beside.depth, real, rest);
    }
    at += kWords * kPer * f.depth, y_at += kWords * kPer * beside.depth;
  }

  __device__ void pull(int activation) {
    if constexpr (kSize == 2)
      kernels::visit_activation(activation, [&](auto, auto pullback) {
#pragma unroll
        for (int q = 0; q < kQuads; ++q)
#pragma unroll
          for (int i = 0; i < kRaw; ++i) {
            float pulled[2];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              const float g = Kind::number(raw[q][i] >> 16 * k), y = Kind::number(y_raw[q][i] >> 16 * k);
              pulled[k] = pullback(g, y, y);
            }
            raw[q][i] = Kind::word(pulled[0], pulled[1]);
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

  __device__ void put(Reading reading, uint32_t* to) const {
    if (down(reading)) {
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

template <class Kind, class Source, class S> struct Cores {
  using A = CoreLoader<Kind, Source, S::kM, S::kThreadsOf>;
  using B = CoreLoader<Kind, Source, S::kN, S::kThreadsOf>;
  using Out = Exit<float, S::kM, S::kN, S::kRows, 1, S::kThreadsOf>;
  static constexpr int kStage = A::kElements + B::kElements;
  static constexpr size_t kBytes = 4 * size_t(2 * kStage > Out::kPart ? 2 * kStage : Out::kPart);
};

template <class Kind, class Source, class S>
__global__ void __launch_bounds__(S::kThreadsOf, S::kBlocks) multiply_cores(const __grid_constant__ Group group) {
  using K = Cores<Kind, Source, S>;
  constexpr int kDepth = kWords * Kind::kPer, kTilesM = S::kWarpM / 16, kTilesN = S::kWarpN / 8;
  constexpr bool kSums = sizeof(Source) == 2;
  uint32_t* const shared = reinterpret_cast<uint32_t*>(pb_shared);
  const Problem& p = group.problems[group.count > 1 && blockIdx.x >= group.problems[1].first];
  const TilePosition position = position_of<S::kM, S::kN>(p);
  const int length = int(position.end - position.begin), steps = (length + kDepth - 1) / kDepth;

  typename K::A a;
  typename K::B b;
  a.begin(p.a, p.y, p.reading_a, position.a, position.row, p.m, position.begin);
  b.begin(p.b, p.b, p.reading_b, position.b, position.column, p.n, position.begin);

  const int thread = int(threadIdx.x), warp = thread / 32, group_of = thread % 32 / 4, in_group = thread % 4;
  const int row = warp / S::kAcross * S::kWarpM + group_of, column = warp % S::kAcross * S::kWarpN + group_of;
  float sums[kTilesM][kTilesN][4] = {};
  float row_sum = 0;
  const bool summing = kSums && p.sums && position.column == 0 && thread < S::kM;

  const auto fetch = [&](int s) {
    const int left = length - s * kDepth;
    a.fetch(p.a, p.y, p.reading_a, kSums && p.pulled, left), b.fetch(p.b, p.b, p.reading_b, false, left);
  };
  const auto put = [&](int s) {
    uint32_t* const stage = shared + s % 2 * K::kStage;
    if (kSums && p.pulled) a.pull(p.pulled);
    a.put(p.reading_a, stage), b.put(p.reading_b, stage + K::A::kElements);
  };
  if (steps > 0) fetch(0), put(0);
  for (int s = 0; s < steps; ++s) {
    __syncthreads();
    if (s + 1 < steps) fetch(s + 1);
    const uint32_t* const stage = shared + s % 2 * K::kStage;
#pragma unroll
    for (int k = 0; k < kWords; k += 8) {
      uint32_t x[kTilesM][4], y[kTilesN][2];
#pragma unroll
      for (int i = 0; i < kTilesM; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[i][e] = stage[(k + e / 2 * 4 + in_group) * K::A::kPitch + column_of(k + e / 2 * 4, row + 16 * i + e % 2 * 8)];
#pragma unroll
      for (int j = 0; j < kTilesN; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          y[j][e] = stage[K::A::kElements + (k + e * 4 + in_group) * K::B::kPitch + column_of(k + e * 4, column + 8 * j)];
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
    if (s + 1 < steps) put(s + 1);
  }

  float* const out = reinterpret_cast<float*>(pb_shared);
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    __syncthreads();
    if (S::kParts == 1 || warp / S::kAcross == part) {
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
    }
    __syncthreads();
    K::Out::part(p, position, out, part * S::kRows);
  }
  if (summing) K::Out::put_sum(p, position, thread, row_sum);
  K::Out::fold(p, position);
}

template <class Kind, class Source, class S> void launch_cores(const Group& group, unsigned blocks) {
  start(multiply_cores<Kind, Source, S>, dim3(blocks), dim3(S::kThreadsOf), Cores<Kind, Source, S>::kBytes, group);
}
template <class Kind, class Source, class S> Tile core_tile(float latency, float throughput) {
  return {launch_cores<Kind, Source, S>, S::kM, S::kN, kWords * Kind::kPer, 1, sizeof(Source) == 2, latency, throughput};
}

using SmallCores = CoreShape<32, 32, 2, 2, 1, 4>;
using MediumCores = CoreShape<64, 64, 2, 2, 1, 3>;
using LargeCores = CoreShape<128, 128, 2, 4, 2, 1>;

template <class Kind, bool kRounds> Tiles core_tiles() {
  using Source = std::conditional_t<kRounds, float, uint16_t>;
  constexpr float kPer = Kind::kPer;
  static const Tile tiles[] = {core_tile<Kind, Source, SmallCores>(20 / kPer, 4 / kPer),
                               core_tile<Kind, Source, MediumCores>(25 / kPer, 10 / kPer),
                               core_tile<Kind, Source, LargeCores>(50 / kPer, 32 / kPer)};
  return {tiles, 3};
}

}  // namespace pb::cuda
