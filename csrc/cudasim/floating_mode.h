// The mode of floating-point arithmetic, such as whether denormal numbers count as zero: kernels run in that of the thread that
// launched them, as if they had been compiled for it.
#pragma once

#include <cfenv>

namespace cudasim {

class FloatingMode {
 public:
  FloatingMode() { std::fegetenv(&mode_); }  // of this thread, now
  void set() const { std::fesetenv(&mode_); }

 private:
  std::fenv_t mode_;
};

}  // namespace cudasim
