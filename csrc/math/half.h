// The two 16-bit floating-point types. They are for storage only: arithmetic is done in float, and its result is rounded once, to
// nearest even.
#pragma once
#include "math/bits.h"

namespace pb {

// IEEE 754 binary16. Conversions compute all cases and select one, so that loops of conversions vectorize. The additions that make
// the hardware round follow F. Giesen, "Float->half variants" (2012).
struct float16 {
  uint16_t bits = 0;

  float16() = default;
  PB_HD explicit float16(float x) : bits(narrow(x)) {}
  PB_HD operator float() const { return widen(bits); }
  PB_HD static float16 from_bits(uint16_t b) {
    float16 h;
    h.bits = b;
    return h;
  }

 private:
#if defined(__CUDA_ARCH__)  // one instruction each, which gives a NaN different bits
  PB_HD static uint16_t narrow(float x) {
    uint16_t y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
  }
  PB_HD static float widen(uint16_t h) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(h));
    return y;
  }
#else
  PB_HD static uint16_t narrow(float x) {
    const uint32_t all = m::bits(x), sign = all & 0x80000000u, magnitude = all ^ sign;
    const uint32_t odd = (magnitude >> 13) & 1;  // so that a tie goes to the even neighbour
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
    // The last place of 0.5 is the spacing of subnormals, so adding 0.5 leaves their rounded bits.
    const uint32_t subnormal = m::bits(m::from_bits<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    uint32_t y = magnitude < 0x38800000u ? subnormal : normal;
    y = magnitude >= 0x47800000u ? 0x7c00u : y;
    y = magnitude > 0x7f800000u ? nan : y;
    return uint16_t(y | (sign >> 16));
  }
  PB_HD static float widen(uint16_t h) {
    const uint32_t magnitude = uint32_t(h & 0x7fffu) << 13, sign = uint32_t(h & 0x8000u) << 16;
    const uint32_t exponent = magnitude & 0x0f800000u;
    const uint32_t normal = magnitude + 0x38000000u;
    const uint32_t special = magnitude + 0x70000000u;
    const uint32_t subnormal = m::bits(m::from_bits<float>(magnitude + 0x38800000u) - 0x1p-14f);
    uint32_t y = exponent == 0 ? subnormal : normal;
    y = exponent == 0x0f800000u ? special : y;
    return m::from_bits<float>(y | sign);
  }
#endif
};

// The type bfloat16 is the upper half of a float.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  PB_HD explicit bfloat16(float x) : bits(narrow(x)) {}
  PB_HD operator float() const { return m::from_bits<float>(uint32_t(bits) << 16); }
  PB_HD static bfloat16 from_bits(uint16_t b) {
    bfloat16 h;
    h.bits = b;
    return h;
  }

 private:
  PB_HD static uint16_t narrow(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#else
    const uint32_t all = m::bits(x);
    const uint32_t rounded = (all + 0x7fffu + ((all >> 16) & 1)) >> 16;
    const uint32_t nan = (all >> 16) | 0x40u;
    return uint16_t((all & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
#endif
  }
};

static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2);

}  // namespace pb
