// Wraps the backend's perform(): runs each launch alone, watches it, and stores what it did next to what its formula claims.
#include "launch/door.h"

#include <algorithm>
#include <vector>

#include "count/watch.h"

namespace pb {
namespace {

// One of the first operands of a launch. dtype is -1 if the operand has no memory. All fields have 64 bits, for ctypes.
struct Operand {
  int64_t dtype, ndim, shape[kMaxDims];
};
constexpr int kOperands = 6;  // the number of operands that are stored

struct Watched {
  const char* kernel;
  int64_t arithmetic, outputs, operands;
  int64_t formula[7];  // four figures of work, the arithmetic on integers, the bytes read and written
  Counts executed;     // the executed work that the ledger would record
  count::Seen seen;
  Operand operand[kOperands];
};
std::vector<Watched> launches;

}  // namespace

void perform_on_device(const Launch& launch);  // the backend's perform(), which is compiled under this name

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
  time_of(mark());  // waits for earlier launches
  count::watch(launch);
  perform_on_device(launch);
  time_of(mark());
  watched.seen = count::seen();
  launches.push_back(watched);
}

}  // namespace pb

// Functions for ctypes. pullback_work_begin() and pullback_work_end() count the operations of any code that runs between them. The
// others return the number of stored launches, return launch k, and discard all launches.
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
