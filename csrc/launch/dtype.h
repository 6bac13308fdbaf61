// The dtypes of tensors, and the type in which arithmetic on each is done.
#pragma once
#include <cstdint>
#include <type_traits>

#include "math/half.h"

namespace pb {

enum class DType : uint8_t { f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, b8 };
constexpr int kDTypes = 13;

constexpr int kItemSize[kDTypes] = {2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};
constexpr const char* kDTypeName[kDTypes] = {"float16", "bfloat16", "float32", "float64", "int8",   "int16", "int32",
                                             "int64",   "uint8",    "uint16",  "uint32",  "uint64", "bool"};

inline int item_size(DType t) { return kItemSize[int(t)]; }
inline bool is_float(DType t) { return t <= DType::f64; }
inline bool is_half(DType t) { return t <= DType::bf16; }

// Loops are instantiated for these five types only. Elements of other dtypes are converted when they are loaded and stored, block
// by block. The results are right: integer arithmetic modulo 2^64 truncates to the result modulo 2^n, and half precision is rounded
// once, when it is stored.
enum class Compute : uint8_t { f32, f64, i64, u64, b8 };
constexpr int kComputes = 5;

inline Compute compute_type(DType t) {
  constexpr Compute table[kDTypes] = {Compute::f32, Compute::f32, Compute::f32, Compute::f64, Compute::i64,
                                      Compute::i64, Compute::i64, Compute::i64, Compute::i64, Compute::i64,
                                      Compute::i64, Compute::u64, Compute::b8};
  return table[int(t)];
}
inline DType storage_of(Compute c) {
  constexpr DType table[kComputes] = {DType::f32, DType::f64, DType::i64, DType::u64, DType::b8};
  return table[int(c)];
}
template <class C> constexpr Compute compute_of = std::is_same_v<C, float>    ? Compute::f32
                                                  : std::is_same_v<C, double> ? Compute::f64
                                                  : std::is_same_v<C, bool>   ? Compute::b8
                                                  : std::is_signed_v<C>       ? Compute::i64
                                                                              : Compute::u64;
inline int compute_size(Compute c) { return item_size(storage_of(c)); }

template <class T> struct Tag {
  using type = T;
};

// Calls f(Tag<T>{}), where T is the C++ type that stores elements of dtype t.
template <class F> inline auto visit(DType t, F&& f) {
  switch (t) {
    case DType::f16: return f(Tag<float16>{});
    case DType::bf16: return f(Tag<bfloat16>{});
    case DType::f32: return f(Tag<float>{});
    case DType::f64: return f(Tag<double>{});
    case DType::i8: return f(Tag<int8_t>{});
    case DType::i16: return f(Tag<int16_t>{});
    case DType::i32: return f(Tag<int32_t>{});
    case DType::i64: return f(Tag<int64_t>{});
    case DType::u8: return f(Tag<uint8_t>{});
    case DType::u16: return f(Tag<uint16_t>{});
    case DType::u32: return f(Tag<uint32_t>{});
    case DType::u64: return f(Tag<uint64_t>{});
    case DType::b8: break;
  }
  return f(Tag<bool>{});
}

template <class F> inline auto visit(Compute c, F&& f) {
  switch (c) {
    case Compute::f32: return f(Tag<float>{});
    case Compute::f64: return f(Tag<double>{});
    case Compute::i64: return f(Tag<int64_t>{});
    case Compute::u64: return f(Tag<uint64_t>{});
    case Compute::b8: break;
  }
  return f(Tag<bool>{});
}

}  // namespace pb
