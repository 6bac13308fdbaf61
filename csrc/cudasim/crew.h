// OS threads that are kept between launches, because each owns a Block with its fibers.
#pragma once

#include <functional>

namespace cudasim {

// Calls work(0) to work(count - 1) at the same time, the first on the calling thread. Returns when all have returned.
void run_on_crew(unsigned count, const std::function<void(unsigned)>& work);

}  // namespace cudasim
