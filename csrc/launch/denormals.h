// Sets the CPU's flush-to-zero mode while a kernel runs, and restores the caller's mode afterwards.
#pragma once
#include "launch/door.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace pb {

// True if the launch computes with denormals as IEEE 754 says. A denormal costs up to a hundred cycles, so arithmetic in float32
// and narrower dtypes flushes them to zero, and so does their conversion to float64. Arithmetic in float64 keeps them.
inline bool keeps_denormals(const Launch& launch) {
  const DType result = launch.operands[0].dtype;
  if (is_float(result) && result != DType::f64) return false;
  bool wide = false, narrow = false;
  for (int k = 0; k < launch.inputs; ++k) {
    wide |= launch.in(k).dtype == DType::f64;
    narrow |= is_float(launch.in(k).dtype) && launch.in(k).dtype != DType::f64;
  }
  return wide || (result == DType::f64 && !narrow);
}

// Sets this thread's mode. The destructor restores the mode that the caller had.
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
