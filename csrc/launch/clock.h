// The host's monotonic clock.
#pragma once
#include <cstdint>
#include <ctime>

namespace pb {

// Returns the monotonic clock in nanoseconds.
inline int64_t host_time() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

}  // namespace pb
