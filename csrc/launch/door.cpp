// Reports launches to this thread's recorder and ledger.
#include "launch/door.h"

#include "launch/clock.h"

namespace pb {

thread_local Door door;

namespace {

// True if input k is the same memory as an earlier input: in x * x a kernel reads x once.
bool read_before(const Launch& launch, int k) {
  for (int j = 0; j < k; ++j)
    if (launch.in(j).data == launch.in(k).data && launch.in(j).distinct_bytes() == launch.in(k).distinct_bytes()) return true;
  return false;
}

// True if every output is empty, so that the kernel has nothing to do and reads nothing.
bool writes_nothing(const Launch& launch) {
  for (int k = 0; k < launch.outputs; ++k)
    if (launch.out(k).size() != 0) return false;
  return launch.outputs > 0;
}

LedgerKey key_of(const Launch& launch, const Attribution& attribution, const Cost& cost) {
  int arithmetic = -1;
  for (int k = 0; k < launch.outputs + launch.inputs && arithmetic < 0; ++k)
    if (launch.operands[k].data && is_float(launch.operands[k].dtype)) arithmetic = int(launch.operands[k].dtype);
  if (arithmetic < 0) arithmetic = int(launch.out().dtype);
  if (arithmetic == int(DType::f32) && multiplies_in_tf32(launch, attribution, double(cost.matmul_flops))) arithmetic = kTf32;
  return {launch.kernel->name, attribution.phase, attribution.scope, arithmetic};
}

}  // namespace

PlanRecord figures_of(const Launch& launch, const Attribution& attribution) {
  const RestoreAttribution kept;
  door.attribution = attribution;  // the cost of a product depends on its precision
  Cost cost;
  launch.kernel->cost(launch, cost);
  if (cost.bytes_read == 0 && cost.bytes_written == 0 && !writes_nothing(launch)) {
    for (int k = 0; k < launch.outputs; ++k) cost.bytes_written += launch.out(k).bytes();
    for (int k = 0; k < launch.inputs; ++k)
      if (!read_before(launch, k)) cost.bytes_read += launch.in(k).distinct_bytes();
  }
  const LedgerKey key = key_of(launch, attribution, cost);
  if (key.arithmetic > int(DType::f64) && key.arithmetic < kTf32 && !cost.on_floats) {
    cost.integer_ops += cost.flops() + cost.special;
    static_cast<Counts&>(cost) = {}, cost.matmul_flops = 0;
    return {key, cost};
  }
  cost.executed = cost;
  if (launch.kernel->executed) launch.kernel->executed(launch, cost.executed);
  return {key, cost};
}

void perform_recorded(const Launch& launch) {
  if (door.recorder) door.recorder->add(launch, door.attribution);
  if (!door.ledger) {
    launches_without_ledger.fetch_add(1, std::memory_order_relaxed);
    return perform(launch);
  }
  Ledger& ledger = *door.ledger;
  const auto [key, cost] = figures_of(launch, door.attribution);
  if (!ledger.timed) {
    if (!ledger.dry) perform(launch);
    return ledger.add({key, cost, live_bytes(), 0, 0});
  }
  const int64_t begin = mark(), before = kMarksAreTimes ? begin : host_time();
  perform(launch);
  const int64_t after = host_time();
  ledger.launched(after - before);
  ledger.add({key, cost, live_bytes(), begin, kMarksAreTimes ? after : mark()});
}

}  // namespace pb
