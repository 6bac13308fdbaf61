// Non-temporal stores. An output larger than the caches is written without reading its lines first and without evicting data that
// is needed next.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace pb::cpu {

constexpr int64_t kNontemporalBytes = 16 * 1024 * 1024;  // the smallest output for which it pays, in bytes
constexpr int64_t kNontemporalAfterExp =
    4 * kNontemporalBytes;  // for outputs of exponentials, whose computation hides the reads

// Copies `bytes` bytes. Other threads can see them only after nontemporal_fence().
inline void store_nontemporal(char* out, const char* in, int64_t bytes) {
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
inline void nontemporal_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace pb::cpu
