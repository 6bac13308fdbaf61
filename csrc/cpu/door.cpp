// The CPU's part of the door: it runs kernels in the right denormal mode, and takes times from the host's clock.
#include "launch/door.h"

#include "launch/clock.h"
#include "launch/denormals.h"

namespace pb {

int64_t mark() { return host_time(); }
int64_t time_of(int64_t mark) { return mark; }

bool multiplies_in_tf32(const Launch&, const Attribution&, double) { return false; }

void perform(const Launch& launch) { run_flushed(launch); }

}  // namespace pb
