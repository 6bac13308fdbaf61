// Defines CUDA's keywords, vector types and built-in variables in plain C++.
#pragma once

#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
// A block runs on one OS thread, so its shared variables are thread-local. Inside a function, thread_local implies static.
#define __shared__ thread_local

// The types have the attribute may_alias, because kernels read arrays of scalars through them.
#define CUDASIM_VECTORS(type, scalar, align2, align4)                                  \
  struct __attribute__((may_alias)) type##1 { scalar x; };                             \
  struct __attribute__((may_alias, aligned(align2))) type##2 { scalar x, y; };         \
  struct __attribute__((may_alias)) type##3 { scalar x, y, z; };                       \
  struct __attribute__((may_alias, aligned(align4))) type##4 { scalar x, y, z, w; };   \
  constexpr type##1 make_##type##1(scalar x) { return {x}; }                           \
  constexpr type##2 make_##type##2(scalar x, scalar y) { return {x, y}; }              \
  constexpr type##3 make_##type##3(scalar x, scalar y, scalar z) { return {x, y, z}; } \
  constexpr type##4 make_##type##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

CUDASIM_VECTORS(char, signed char, 2, 4)
CUDASIM_VECTORS(uchar, unsigned char, 2, 4)
CUDASIM_VECTORS(short, short, 4, 8)
CUDASIM_VECTORS(ushort, unsigned short, 4, 8)
CUDASIM_VECTORS(int, int, 8, 16)
CUDASIM_VECTORS(uint, unsigned, 8, 16)
CUDASIM_VECTORS(long, long, 16, 16)
CUDASIM_VECTORS(ulong, unsigned long, 16, 16)
CUDASIM_VECTORS(longlong, long long, 16, 16)
CUDASIM_VECTORS(ulonglong, unsigned long long, 16, 16)
CUDASIM_VECTORS(float, float, 8, 16)
CUDASIM_VECTORS(double, double, 16, 16)
#undef CUDASIM_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

inline thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
inline thread_local dim3 blockDim, gridDim;

namespace cudasim {

constexpr unsigned kWarp = 32, kMaxThreads = 1024, kMaxWarps = kMaxThreads / kWarp;

// The line of device code that called an intrinsic. It is the last parameter of the intrinsic, and here() is its default.
struct Site {
  const char* file = nullptr;
  int line = 0;
  bool operator!=(const Site& other) const {
    return line != other.line || (file != other.file && __builtin_strcmp(file, other.file));
  }
  static constexpr Site here(const char* in = __builtin_FILE(), int at = __builtin_LINE()) { return {in, at}; }
};

}  // namespace cudasim
