// The door on the CPU: the clock, and the denormal mode around a kernel.
#include "launch/door.h"

#include <ctime>

#include "launch/denormals.h"

namespace pb {

int64_t mark() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}
int64_t time_of(int64_t mark) { return mark; }

bool multiplies_in_tf32(const Charge&) { return false; }

void perform(const Launch& launch) { run_flushed(launch); }

}  // namespace pb
