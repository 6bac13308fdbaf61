// Writing past the caches: an output larger than they are is not read first, and does not evict what is wanted next.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace pb::cpu {

constexpr int64_t kFarBytes = 16 * 1024 * 1024;  // from here on
constexpr int64_t kFarHidden = 4 * kFarBytes;    // where exponentials hide the reading

// Copies; other threads see it after far_fence.
inline void write_far(char* out, const char* in, int64_t bytes) {
  int64_t i = 0;
#if defined(__SSE2__)
  i = -reinterpret_cast<intptr_t>(out) & 63;
  if (i > bytes) i = bytes;
  std::memcpy(out, in, i);
  for (; i + 64 <= bytes; i += 64)
    for (int k = 0; k < 64; k += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i + k), _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i + k)));
#endif
  std::memcpy(out + i, in + i, bytes - i);
}
inline void far_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace pb::cpu
