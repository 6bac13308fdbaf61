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

#if defined(__SSE2__)
// The bits of the control register that flush denormal results and operands to zero, and the register.
constexpr unsigned kFlushDenormals = 0x8040;
inline unsigned float_control() { return _mm_getcsr(); }
inline void set_float_control(unsigned control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
constexpr uint64_t kFlushDenormals = 1u << 24;
inline uint64_t float_control() {
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}
inline void set_float_control(uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control)); }
#else
constexpr unsigned kFlushDenormals = 0;
inline unsigned float_control() { return 0; }
inline void set_float_control(unsigned) {}
#endif

// Sets this thread's mode. The destructor restores the mode that the caller had.
class DenormalMode {
 public:
  ~DenormalMode() {
    if (now_ != before_) set_float_control(before_);
  }
  void set(bool keeps) {
    const auto wanted = keeps ? before_ & ~kFlushDenormals : before_ | kFlushDenormals;
    if (wanted != now_) set_float_control(now_ = wanted);
  }

 private:
  const decltype(float_control()) before_ = float_control();
  decltype(float_control()) now_ = before_;
};

inline void run_flushed(const Launch& launch) {
  DenormalMode mode;
  mode.set(keeps_denormals(launch));
  launch.kernel->run(launch);
}

}  // namespace pb
