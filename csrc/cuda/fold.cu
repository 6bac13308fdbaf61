// The tickets of each device.
#include "cuda/fold.cuh"

#include <mutex>

namespace pb::cuda {

unsigned* tickets() {
  static std::mutex mutex;
  static unsigned* of[kMaxDevices];
  const std::lock_guard<std::mutex> lock(mutex);
  unsigned*& here = of[current_device()];
  if (!here) {
    auto* fresh = static_cast<unsigned*>(kernels::allocate(kTickets * sizeof(unsigned)).data);  // for good
    check(cudaMemsetAsync(fresh, 0, kTickets * sizeof(unsigned), stream()), "clearing memory");
    here = fresh;
  }
  return here;
}

}  // namespace pb::cuda
