// Products of small matrices by one warp, on tensor cores, and an equivalent without them for the simulator.
//
// Every lane holds parts of three matrices in registers, as PTX lays them out ("Matrix fragments for mma.m16n8k8" and m16n8k16).
// With g = lane / 4 and t = lane % 4, d[0..3] are D's elements (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
#pragma once

#include <cstdint>

#include "cuda/runtime.h"
#include "math/half.h"

namespace pb::cuda {

// True where these instructions exist: from sm_80 on, and in the simulator. by_tensor_cores() (gemm.cu) chooses no kernel with them
// elsewhere, and the kernel must be a trap there, so that a GPU without them does not get its code.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool kHasMma = false;
#else
constexpr bool kHasMma = true;
#endif

#if !defined(__CUDACC__)
namespace detail {

struct Fragments {
  uint32_t a[4], b[2];
};

// D += A B for 16 × depth by depth × 8. A register holds kPacked neighbours along the depth, number(register, k) returns the k-th
// of them, and a[j] belongs to row g + 8 (j % 2).
template <int kPacked, class Number>
void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Number number, cudasim::Site site) {
  const Fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  cudasim::block().meet(cudasim::Collective::kMatrix, 0xffffffffu, mine, site, [&](const cudasim::Peers<Fragments>& peers) {
    const unsigned g = cudasim::block().lane() / 4, t = cudasim::block().lane() % 4;
    Fragments left[4], right[4][2];
    for (unsigned k = 0; k < 4; ++k) {
      left[k] = peers[4 * g + k];
      for (unsigned j = 0; j < 2; ++j) right[k][j] = peers[4 * (2 * t + j) + k];
    }
    for (int i = 0; i < 8 * kPacked; ++i) {
      const int half = i / (4 * kPacked), k = i / kPacked % 4, p = i % kPacked;
      for (int j = 0; j < 4; ++j) d[j] = fmaf(number(left[k].a[2 * half + j / 2], p), number(right[k][j % 2].b[half], p), d[j]);
    }
    return 0;
  });
}

}  // namespace detail
#endif

// Rounds to the 10 mantissa bits of tf32: to nearest, ties away from zero.
__device__ __forceinline__ uint32_t to_tf32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#else
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
#endif
}

// D += A B for 16×8 by 8×8 in tf32. a: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); b: (t, g), (t + 4, g). Requires kHasMma.
#if defined(__CUDACC__)
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kHasMma)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     cudasim::Site site = cudasim::Site::here()) {
  detail::multiply<1>(d, a, b, [](uint32_t bits, int) { return float(__uint_as_float(bits & 0xffffe000u)); }, site);
}
#endif

// D += A B for 16×16 by 16×8 in bfloat16. A register holds two numbers, with the lower column or row in the lower half. a: (g, 2t),
// (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8); b: (2t, g), (2t + 8, g). Requires kHasMma.
#if defined(__CUDACC__)
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kHasMma)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     cudasim::Site site = cudasim::Site::here()) {
  detail::multiply<2>(
      d, a, b, [](uint32_t bits, int k) { return float(__uint_as_float(k ? bits & 0xffff0000u : bits << 16)); }, site);
}
#endif

// D += A B for 16×16 by 16×8 in float16, with the layout and the requirement of mma_bf16.
#if defined(__CUDACC__)
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kHasMma)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], cudasim::Site site = cudasim::Site::here()) {
  detail::multiply<2>(
      d, a, b, [](uint32_t bits, int k) { return float(float16::from_bits(uint16_t(k ? bits >> 16 : bits))); }, site);
}
#endif

}  // namespace pb::cuda
