// Asynchronous copies from global to shared memory, which do not pass through registers (sm_80 and later; on older devices they are
// loads and stores). __pipeline_commit and __pipeline_wait_prior group and await them.
#pragma once
#include "cuda/runtime.h"

namespace pb::cuda {

// Copies kBytes (4, 8 or 16, with the same alignment). If `exists` is false, writes zeros and does not read `from`.
template <int kBytes> __device__ __forceinline__ void copy_async(void* to, const void* from, bool exists) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto shared = unsigned(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(exists ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(from), "n"(kBytes), "r"(exists ? kBytes : 0)
                 : "memory");
#elif defined(__CUDACC__)
  struct __align__(kBytes) Bytes {
    unsigned v[kBytes / 4];
  };
  Bytes bytes{};
  if (exists) bytes = *static_cast<const Bytes*>(from);
  *static_cast<Bytes*>(to) = bytes;
#else
  __pipeline_memcpy_async(to, from, kBytes, exists ? 0 : kBytes);
#endif
}

}  // namespace pb::cuda
