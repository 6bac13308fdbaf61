// Whether denormal numbers count as zero while a kernel runs on a processor.
#pragma once
#include "launch/door.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace pb {

// Denormals cost up to a hundred cycles each: float32 and narrower flush them to zero, float64 keeps IEEE behaviour.
inline bool keeps_denormals(const Launch& launch) {
  const DType result = launch.operands[0].dtype;
  bool wide = result == DType::f64;
  if (!is_float(result))  // a comparison, or a cast to integers: what it reads decides
    for (int k = 0; k < launch.inputs; ++k) wide |= launch.in(k).dtype == DType::f64;
  return wide;
}

// This thread's mode, which is the caller's again at the end.
class DenormalMode {
 public:
#if defined(__SSE2__)
  ~DenormalMode() {
    if (now_ != before_) _mm_setcsr(before_);
  }
  void set(bool keeps) {
    constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
    const unsigned wanted = keeps ? before_ & ~(kFlushToZero | kDenormalsAreZero) : before_ | kFlushToZero | kDenormalsAreZero;
    if (wanted != now_) _mm_setcsr(now_ = wanted);
  }

 private:
  const unsigned before_ = _mm_getcsr();
  unsigned now_ = before_;
#else
  void set(bool) {}
#endif
};

inline void run_flushed(const Launch& launch) {
  DenormalMode mode;
  mode.set(keeps_denormals(launch));
  launch.kernel->run(launch);
}

}  // namespace pb
