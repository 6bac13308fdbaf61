// The mode of floating-point arithmetic, such as the flushing of denormal numbers to zero. A kernel runs in the mode of the thread
// that launched it, as if the kernel had been compiled for that mode.
#pragma once

#include <cfenv>

namespace cudasim {

class FloatingMode {
 public:
  FloatingMode() { std::fegetenv(&mode_); }  // the current mode of this thread
  void set() const { std::fesetenv(&mode_); }

 private:
  std::fenv_t mode_;
};

}  // namespace cudasim
