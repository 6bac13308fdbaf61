// OS threads that are kept between launches, each with the block and the fibers that it has.
#pragma once

#include <functional>

namespace cudasim {

// Calls work(0) to work(count - 1) at the same time, the first on the calling thread. Returns when all have returned.
void run_on_crew(unsigned count, const std::function<void(unsigned)>& work);

}  // namespace cudasim
