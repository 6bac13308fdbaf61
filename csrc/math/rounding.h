// Stochastic rounding to half precision: a number is rounded up or down at random, with a probability in proportion to the distance
// from the other neighbour, so that the expected value is the number itself. Changes below half a unit in the last place are then not
// lost, but happen in a share of the elements.
#pragma once
#include "math/random.h"
#include "math/scalar.h"

namespace pb {

// The random bits of an update are a function of (number of the parameter, count of its steps, position of the element in its
// network). They do not come from the stream of pb.random, for three reasons: a state that is resumed has the count of steps and needs
// nothing else; a network among others has the bits that it would have alone; and no other random number of a program depends on how
// its optimizer rounds. An arbitrary constant is the key of parameter 0, because small numbers are keys that people choose as seeds.
constexpr uint64_t kRoundingKey = 0x9d39247e33776d41u;
constexpr int kRoundingLanes = 8;  // elements for each counter, with 16 random bits each

// Returns the random bits of the elements from kRoundingLanes * block on.
PB_HD random::Words rounding_words(uint64_t parameter, uint64_t step, uint64_t block) {
  return random::philox(kRoundingKey + parameter, {block, step});
}
PB_HD uint32_t rounding_bits(const random::Words& words, int lane) {  // an index that is not a constant would cost a GPU memory
  const uint32_t low = lane & 2 ? words.w[1] : words.w[0], high = lane & 2 ? words.w[3] : words.w[2];
  return (lane & 4 ? high : low) >> (lane & 1) * 16 & 0xffffu;
}

// Rounds x to bfloat16 or float16, down in magnitude or up if 16 random bits are below the part that is cut off. A number that the
// type can hold stays as it is, and so does 0. A number beyond the largest finite one has no upper neighbour, and is rounded to the
// nearest, as NaN is.
template <class T> struct AtRandom;
template <> struct AtRandom<bfloat16> {
  static PB_HD bfloat16 of(float x, uint32_t random) {
    const uint32_t all = m::bits(x), magnitude = all & 0x7fffffffu;
    const uint32_t up_or_down = (all + random) >> 16, nearest = bfloat16(x).bits;
    return bfloat16::from_bits(uint16_t(magnitude < 0x7f7f0000u ? up_or_down : nearest));
  }
};
// Numbers below 2^-17 have parts of more than 16 bits, whose probability is the next multiple of 2^-16.
template <> struct AtRandom<float16> {
  static PB_HD float16 of(float x, uint32_t random) {
    const uint32_t all = m::bits(x), magnitude = all & 0x7fffffffu, sign = (all ^ magnitude) >> 16;
    const uint32_t normal = (magnitude - 0x38000000u + (random >> 3)) >> 13;
    const bool small = magnitude < 0x38800000u;  // below 2^-14: a multiple of 2^-24
    const float units = (small ? m::from_bits<float>(magnitude) : 0.0f) * 0x1p24f;
    const int32_t whole = int32_t(units);
    const uint32_t subnormal = uint32_t(whole) + uint32_t((units - float(whole)) * 0x1p16f > float(int32_t(random)));
    const uint32_t up_or_down = (small ? subnormal : normal) | sign, nearest = float16(x).bits;
    return float16::from_bits(uint16_t(magnitude < 0x477fe000u ? up_or_down : nearest));
  }
};

// Returns x rounded to T, in the type of the arithmetic.
template <class T, class A> PB_HD A rounded_at_random(A x, uint32_t random) {
  return A(AtRandom<T>::of(m::from_bits<float>(m::bits(x)), random));
}

}  // namespace pb
