// What is told of a launch: the recorder, and the ledger.
#include "launch/door.h"

namespace pb {

thread_local Door door;

namespace {

// Whether input k is the same memory as an earlier one: x in x * x is read once.
bool read_before(const Launch& launch, int k) {
  for (int j = 0; j < k; ++j)
    if (launch.in(j).data == launch.in(k).data && launch.in(j).distinct_bytes() == launch.in(k).distinct_bytes()) return true;
  return false;
}

}  // namespace

void perform_recorded(const Launch& launch) {
  if (door.recorder) door.recorder->add(launch, door.charge);
  if (!door.ledger) return perform(launch);
  Record record{launch.kernel->name, door.charge.phase, door.charge.scope, {}, mark(), 0};
  launch.kernel->cost(launch, record.cost);
  if (record.cost.executed_flops == 0) record.cost.executed_flops = record.cost.flops;
  if (record.cost.bytes_read == 0 && record.cost.bytes_written == 0) {
    for (int k = 0; k < launch.outputs; ++k) record.cost.bytes_written += launch.out(k).bytes();
    for (int k = 0; k < launch.inputs; ++k)
      if (!read_before(launch, k)) record.cost.bytes_read += launch.in(k).distinct_bytes();
  }
  perform(launch);
  record.end = mark();
  door.ledger->records.push_back(record);
}

}  // namespace pb
