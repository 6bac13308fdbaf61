// Sorting along an axis, and searching in sorted arrays. Every sort is stable.
#pragma once
#include "launch/door.h"

namespace pb::kernels {

// in: x, at most kMaxRow elements long along the axis. ints: the axis, and 1 for descending order.
// NaN is last in both directions.
void sort(const Launch& launch);     // out: of the shape and dtype of x
void argsort(const Launch& launch);  // out: int64
// out: int64, the positions of the first ints[2] elements in the order in which NaN is larger than every number.
void first_positions(const Launch& launch);
inline void sort_cost(const Launch&, Cost&) {}  // comparisons are not counted

// out: int64, the position in the sorted in(0) at which each element of in(1) would be inserted: after equal elements if ints[0] is
// 1, otherwise before them.
void searchsorted(const Launch& launch);

// Maps the order of elements to the order of unsigned integers, so that one sort serves every dtype of a size. Equal elements have
// equal keys (0 and -0 do, and all NaNs). NaN is larger than every number, or last in both directions, as in NumPy's sort. There are
// no branches, because signs are as good as random.
template <class U> struct Order {
  static constexpr int kTop = 8 * sizeof(U) - 1;
  U sign;      // XOR mask that maps signed order to unsigned order: the top bit, or 0 for unsigned dtypes
  U floating;  // 1 for floats
  U infinity;  // the bits of infinity; only NaN has larger ones
  U flip;
  U nan_last;  // the bits that are set in the key of NaN after the flip

  Order(DType dtype, bool descending, bool last) {
    sign = dtype >= DType::u8 ? U(0) : U(U(1) << kTop);
    floating = is_float(dtype);
    infinity = dtype == DType::f16    ? U(0x7C00)
               : dtype == DType::bf16 ? U(0x7F80)
               : dtype == DType::f32  ? U(0x7F800000)
               : dtype == DType::f64  ? U(0x7FF0000000000000)
                                      : U(~U(0));
    flip = descending ? U(~U(0)) : U(0);
    nan_last = last ? U(~U(0)) : U(0);
  }

  PB_HD U key(U bits) const {
    const U negative = U((bits >> kTop) & floating), rest = U(bits & U(~U(negative << kTop)));
    const U minus_zero = negative & U(rest == 0), nan = U(U(0) - U(rest > infinity));
    // All bits of a negative float are inverted, which leaves -0 one below 0.
    const U key = U((bits ^ U(U(U(0) - negative) | sign)) + minus_zero);
    return U(((key | nan) ^ flip) | U(nan & nan_last));
  }
};

// A key and the position it came from. No two are equal, so any sort of these is stable.
template <class U> struct Keyed {
  uint64_t bits;
  Keyed() = default;
  PB_HD Keyed(U key, uint64_t position) : bits(uint64_t(key) << 32 | position) {}
  PB_HD U key() const { return U(bits >> 32); }
  PB_HD int64_t position() const { return int64_t(bits & 0xFFFFFFFF); }
  PB_HD bool operator<(Keyed other) const { return bits < other.bits; }
};
template <> struct Keyed<uint64_t> {
  uint64_t bits, place;
  Keyed() = default;
  PB_HD Keyed(uint64_t key, uint64_t position) : bits(key), place(position) {}
  PB_HD uint64_t key() const { return bits; }
  PB_HD int64_t position() const { return int64_t(place); }
  PB_HD bool operator<(Keyed other) const { return bits < other.bits || (bits == other.bits && place < other.place); }
};
constexpr int64_t kMaxRow = int64_t{1} << 32;  // a position must fit into the 32 bits next to a key

}  // namespace pb::kernels
