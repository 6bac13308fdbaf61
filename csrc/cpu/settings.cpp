// Reads and writes the table of sets outside of an update.
#include <algorithm>
#include <cstring>

#include "families/update.h"

namespace pb::kernels {
namespace {

Setting number_at(const char* at, DType dtype) {
  return visit(dtype, [at](auto tag) {
    using T = typename decltype(tag)::type;
    return Setting(acc_t<T>(*reinterpret_cast<const T*>(at)));
  });
}

}  // namespace

void begin_steps(const Launch& launch) {
  Setting* const sets = launch.out().as<Setting>();
  const int64_t count = launch.ints[0];
  std::copy_n(launch.in().as<const Setting>(), count * kSetSize, sets);
  for (int64_t s = 0; s < count; ++s) begin_step(sets + s * kSetSize, launch.in().as<const Setting>() + count * kSetSize);
}

void write_settings(const Launch& launch) {
  const int64_t* const at = launch.ints;
  for (int64_t k = 0; k < at[2]; ++k)
    std::copy_n(launch.reals, at[4], launch.out().as<Setting>() + (at[0] + k * at[1]) * kSetSize + at[3]);
}

void update_scale(const Launch& launch) {
  next_scale(launch.out().as<ScalerNumber>(), launch.reals[0], launch.reals[1], launch.reals[2]);
}

void observe(const Launch& launch) {
  const View& metric = launch.in();
  const int64_t stride = metric.size() > 1 ? metric.stride[0] : 0;
  Setting *const sets = launch.out().as<Setting>(), *const end = sets + launch.out().shape[0] * kSetSize;
  for (Setting* to = sets + launch.ints[0] * kSetSize; to < end; to += kSetSize) {
    if (!watches(to, sets)) continue;
    Setting row[kSetSize];
    std::memcpy(row, to, sizeof row);
    observe_metric(row, number_at(metric.data + int64_t(row[kMember]) * stride, metric.dtype));
    std::memcpy(to, row, sizeof row);
  }
}

}  // namespace pb::kernels
