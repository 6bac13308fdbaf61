// In front of the door of a backend: every launch is waited for and watched, and kept beside what its formula says.
#include "launch/door.h"

#include <algorithm>
#include <vector>

#include "count/watch.h"

namespace pb {
namespace {

// All of 64 bits, for ctypes. One of the first operands: dtype, -1 where there is none; number of axes; shape.
struct Operand {
  int64_t dtype, ndim, shape[kMaxDims];
};
constexpr int kOperands = 6;

struct Watched {
  const char* kernel;
  int64_t arithmetic, outputs, operands;
  int64_t formula[7];  // the work, arithmetic on integers, bytes
  Counts executed;     // by the ledger
  count::Seen seen;
  Operand operand[kOperands];
};
std::vector<Watched> launches;

}  // namespace

void perform_on_device(const Launch& launch);  // the backend's own, which is compiled with this name

void perform(const Launch& launch) {
  const auto [key, cost] = figures_of(launch, door.attribution);
  Watched watched{key.kernel,
                  key.arithmetic,
                  launch.outputs,
                  launch.outputs + launch.inputs,
                  {cost.adds, cost.multiplies, cost.fmas, cost.special, cost.integer_ops, cost.bytes_read, cost.bytes_written},
                  cost.executed,
                  {},
                  {}};
  for (int k = 0; k < std::min(launch.outputs + launch.inputs, kOperands); ++k) {
    const View& v = launch.operands[k];
    Operand& to = watched.operand[k];
    to.dtype = -1;
    if (!v.data) continue;
    to.dtype = int64_t(v.dtype), to.ndim = v.ndim;
    std::copy_n(v.shape, v.ndim, to.shape);
  }
  time_of(mark());  // waits for what was launched before
  count::watch(launch);
  perform_on_device(launch);
  time_of(mark());
  watched.seen = count::seen();
  launches.push_back(watched);
}

}  // namespace pb

// For ctypes. Launches: how many there were, one of them, and to forget them all. Work: of whatever is done in between.
extern "C" {
__attribute__((visibility("default"))) void pullback_work_begin() { pb::count::watch(); }
__attribute__((visibility("default"))) const void* pullback_work_end() {
  static pb::count::Seen seen;
  return &(seen = pb::count::seen());
}
__attribute__((visibility("default"))) int64_t pullback_launches() { return int64_t(pb::launches.size()); }
__attribute__((visibility("default"))) const void* pullback_launch(int64_t k) { return &pb::launches[size_t(k)]; }
__attribute__((visibility("default"))) void pullback_forget() { pb::launches.clear(); }
}
