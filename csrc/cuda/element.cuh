// Reading and writing numbers: every kernel that takes several dtypes does it with these functions.
//
// An element in memory has a dtype, a number in a register a compute type (launch/dtype.h). A dtype is known in one of two ways:
//   - A lean kernel passes a constant (DType::f32), and a function of this file becomes a single instruction.
//   - A generic kernel passes a variable, which is the same for all threads: they branch together, and never diverge.
//
//   one element                load_as<C>(dtype, p)               store_as<C>(dtype, p, x)
//     of any dtype, converted  convert_from<C>(dtype, p)
//     in two steps             load_raw<C>(dtype, p), widen<C>(dtype, raw)
//     of a float type T        read<T>(dtype, p)                  write<T>(dtype, p, x)
//     of another block         read_fresh(p)
//   four neighbours            load_four(dtype, data, i, x)       store_four(dtype, data, i, x)
//     of which some may lack   load_pack(dtype, data, i, end, x)  store_pack(dtype, data, i, end, x)
#pragma once
#include "cuda/launch.cuh"
#include "cuda/packs.h"
#include "math/scalar.h"

namespace pb::cuda {

// Returns the bytes of an element whose dtype has the compute type C. Sums of integers are also written as uint64.
template <class C> __device__ inline int size_of(DType dtype) {
  if constexpr (std::is_same_v<C, float>) return dtype == DType::f32 ? 4 : 2;
  else if constexpr (std::is_same_v<C, int64_t>)
    return dtype == DType::i8 || dtype == DType::u8     ? 1
           : dtype == DType::i16 || dtype == DType::u16 ? 2
           : dtype == DType::i32 || dtype == DType::u32 ? 4
                                                        : 8;
  else return int(sizeof(C));
}

// ---- one element

// What a load returns before it is converted. A conversion waits for its load, so a kernel that needs several elements issues all
// of their loads before the first conversion.
template <class C> using Raw = std::conditional_t<std::is_same_v<C, float>, uint32_t, C>;

template <class C> __device__ inline Raw<C> load_raw(DType dtype, const char* p) {
  if constexpr (std::is_same_v<C, float>) {
    return dtype == DType::f32 ? *reinterpret_cast<const uint32_t*>(p) : *reinterpret_cast<const uint16_t*>(p);
  } else if constexpr (std::is_same_v<C, int64_t>) {
    switch (dtype) {
      case DType::i8: return *reinterpret_cast<const int8_t*>(p);
      case DType::i16: return *reinterpret_cast<const int16_t*>(p);
      case DType::i32: return *reinterpret_cast<const int32_t*>(p);
      case DType::u8:
      case DType::b8: return *reinterpret_cast<const uint8_t*>(p);
      case DType::u16: return *reinterpret_cast<const uint16_t*>(p);
      case DType::u32: return *reinterpret_cast<const uint32_t*>(p);
      default: return *reinterpret_cast<const int64_t*>(p);
    }
  } else {
    return *reinterpret_cast<const C*>(p);
  }
}
// Both halves are converted and one is selected, which takes fewer instructions than a branch.
template <class C> __device__ inline C widen(DType dtype, Raw<C> raw) {
  if constexpr (!std::is_same_v<C, float>) {
    return raw;
  } else {
    if (dtype == DType::f32) return m::from_bits<float>(raw);
    const float half = float16::from_bits(uint16_t(raw)), brain = bfloat16::from_bits(uint16_t(raw));
    return dtype == DType::f16 ? half : brain;
  }
}

// Returns the element at p, whose dtype must have the compute type C; bool may be read as int64, too.
template <class C> __device__ inline C load_as(DType dtype, const char* p) { return widen<C>(dtype, load_raw<C>(dtype, p)); }

// Writes x as an element of a dtype whose compute type is C. Half precision rounds once; integers wrap, so int64 may be written as
// uint64, too.
template <class C> __device__ inline void store_as(DType dtype, char* p, C x) {
  if constexpr (std::is_same_v<C, float>) {
    if (dtype == DType::f32) *reinterpret_cast<float*>(p) = x;
    else *reinterpret_cast<uint16_t*>(p) = dtype == DType::f16 ? float16(x).bits : bfloat16(x).bits;
  } else if constexpr (std::is_same_v<C, int64_t>) {
    switch (size_of<C>(dtype)) {
      case 1: *reinterpret_cast<uint8_t*>(p) = uint8_t(x); break;
      case 2: *reinterpret_cast<uint16_t*>(p) = uint16_t(x); break;
      case 4: *reinterpret_cast<uint32_t*>(p) = uint32_t(x); break;
      default: *reinterpret_cast<int64_t*>(p) = x;
    }
  } else {
    *reinterpret_cast<C*>(p) = x;
  }
}

// Returns the element at p as C, whatever its dtype. Floats become integers as in C++; everything but zero becomes true.
template <class C> __device__ inline C convert_from(DType dtype, const char* p) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f32: return C(load_as<float>(dtype, p));
    case DType::f64: return C(*reinterpret_cast<const double*>(p));
    case DType::u64: return C(*reinterpret_cast<const uint64_t*>(p));
    case DType::b8: return C(*reinterpret_cast<const uint8_t*>(p) != 0);
    default: return C(load_as<int64_t>(dtype, p));
  }
}

// Stands for float16 or bfloat16 where a kernel is compiled for the type of its elements. One kernel then serves both dtypes.
struct AnyHalf {
  uint16_t bits;
};

}  // namespace pb::cuda
template <> struct pb::Arithmetic<pb::cuda::AnyHalf> {
  using type = float;
};
namespace pb::cuda {

// Reads and writes an element of type T. Only if T is AnyHalf, the dtype matters.
template <class T> __device__ inline acc_t<T> read(DType dtype, const char* p) {
  if constexpr (std::is_same_v<T, AnyHalf>)
    return widen<float>(dtype == DType::f16 ? DType::f16 : DType::bf16, *reinterpret_cast<const uint16_t*>(p));
  else return *reinterpret_cast<const T*>(p);
}
template <class T> __device__ inline void write(DType dtype, char* p, acc_t<T> x) {
  if constexpr (std::is_same_v<T, AnyHalf>)
    *reinterpret_cast<uint16_t*>(p) = dtype == DType::f16 ? float16(x).bits : bfloat16(x).bits;
  else *reinterpret_cast<T*>(p) = x;
}

// Reads a number that another block of the same launch has written, past the L1 cache, which may hold an older one.
template <class A> __device__ inline A read_fresh(const A* p) {
  if constexpr (std::is_same_v<A, bool>) return __ldcg(reinterpret_cast<const unsigned char*>(p)) != 0;
  else return __ldcg(p);
}

// ---- packs: four neighbouring elements, loaded or stored by one instruction (8-byte elements by two)

template <class T> struct __align__(4 * sizeof(T)) Pack {
  T v[4];
};

// Elements i to i + 3 of an array of T. i must be a multiple of four. Those from `end` on are read as 0, and not written.
template <class T> __device__ inline Pack<T> pack_at(const char* data, int64_t i, int64_t end) {
  if (i + 4 <= end) return reinterpret_cast<const Pack<T>*>(data)[i / 4];
  Pack<T> pack{};
  for (int k = 0; k < 3; ++k)
    if (i + k < end) pack.v[k] = reinterpret_cast<const T*>(data)[i + k];
  return pack;
}
template <class T> __device__ inline void put_pack(char* data, int64_t i, int64_t end, const Pack<T>& pack) {
  if (i + 4 <= end) {
    reinterpret_cast<Pack<T>*>(data)[i / 4] = pack;
    return;
  }
  for (int k = 0; k < 3; ++k)
    if (i + k < end) reinterpret_cast<T*>(data)[i + k] = pack.v[k];
}

// The same with conversion. C is float, double, uint64_t or bool.
template <class C> __device__ inline void load_pack(DType dtype, const char* data, int64_t i, int64_t end, C (&x)[4]) {
  static_assert(!std::is_same_v<C, int64_t>);
  if (std::is_same_v<C, float> && dtype != DType::f32) {
    const auto pack = pack_at<uint16_t>(data, i, end);
    for (int k = 0; k < 4; ++k) x[k] = widen<C>(dtype, Raw<C>(pack.v[k]));
  } else {
    const auto pack = pack_at<C>(data, i, end);
    for (int k = 0; k < 4; ++k) x[k] = pack.v[k];
  }
}
template <class C> __device__ inline void store_pack(DType dtype, char* data, int64_t i, int64_t end, const C (&x)[4]) {
  static_assert(!std::is_same_v<C, int64_t>);
  if (std::is_same_v<C, float> && dtype != DType::f32) {
    Pack<uint16_t> pack;
    for (int k = 0; k < 4; ++k) pack.v[k] = dtype == DType::f16 ? float16(float(x[k])).bits : bfloat16(float(x[k])).bits;
    put_pack(data, i, end, pack);
  } else {
    Pack<C> pack;
    for (int k = 0; k < 4; ++k) pack.v[k] = x[k];
    put_pack(data, i, end, pack);
  }
}

// The same where all four exist.
template <class C> __device__ inline void load_four(DType dtype, const char* data, int64_t i, C (&x)[4]) {
  load_pack(dtype, data, i, i + 4, x);
}
template <class C> __device__ inline void store_four(DType dtype, char* data, int64_t i, const C (&x)[4]) {
  store_pack(dtype, data, i, i + 4, x);
}

}  // namespace pb::cuda
