// Whether denormal numbers count as zero while a kernel runs on a processor.
#pragma once
#include "launch/door.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace pb {

// Denormals cost up to a hundred cycles each: float32 and narrower flush them to zero, float64 keeps IEEE behaviour.
// The caller's mode is restored.
inline void run_flushed(const Launch& launch) {
#if defined(__SSE2__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned mode = _mm_getcsr();
  const DType result = launch.operands[0].dtype;
  bool wide = result == DType::f64;
  if (!is_float(result))  // a comparison, or a cast to integers: what it reads decides
    for (int k = 0; k < launch.inputs; ++k) wide |= launch.in(k).dtype == DType::f64;
  const unsigned wanted = wide ? mode & ~(kFlushToZero | kDenormalsAreZero) : mode | kFlushToZero | kDenormalsAreZero;
  if (wanted == mode) return launch.kernel->run(launch);
  struct Restore {
    unsigned mode;
    ~Restore() { _mm_setcsr(mode); }
  } restore{mode};
  _mm_setcsr(wanted);
#endif
  launch.kernel->run(launch);
}

}  // namespace pb
