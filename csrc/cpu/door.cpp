// The door on the CPU: the denormal mode around a kernel, and the ledger's record of it.
#include "launch/door.h"

#include <ctime>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace pb {

thread_local Door door;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// Denormals cost up to a hundred cycles each: float32 and narrower flush them to zero, float64 keeps IEEE behaviour.
// The caller's mode is restored.
void launch_flushed(const Launch& launch) {
#if defined(__SSE2__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned mode = _mm_getcsr();
  const DType result = launch.operands[0].dtype;
  bool wide = result == DType::f64;
  if (!is_float(result))  // a comparison, or a cast to integers: what it reads decides
    for (int k = 0; k < launch.inputs; ++k) wide |= launch.in(k).dtype == DType::f64;
  const unsigned wanted = wide ? mode & ~(kFlushToZero | kDenormalsAreZero) : mode | kFlushToZero | kDenormalsAreZero;
  if (wanted == mode) return launch.kernel->run(launch);
  struct Restore {
    unsigned mode;
    ~Restore() { _mm_setcsr(mode); }
  } restore{mode};
  _mm_setcsr(wanted);
#endif
  launch.kernel->run(launch);
}

namespace {

// Whether input k is the same memory as an earlier one: x in x * x is read once.
bool read_before(const Launch& launch, int k) {
  for (int j = 0; j < k; ++j)
    if (launch.in(j).data == launch.in(k).data && launch.in(j).distinct_bytes() == launch.in(k).distinct_bytes()) return true;
  return false;
}

}  // namespace

void launch_recorded(const Launch& launch) {
  Record record{launch.kernel->name, door.phase, door.scope, {}, now_ns(), 0};
  launch.kernel->cost(launch, record.cost);
  if (record.cost.executed_flops == 0) record.cost.executed_flops = record.cost.flops;
  if (record.cost.bytes_read == 0 && record.cost.bytes_written == 0) {
    for (int k = 0; k < launch.outputs; ++k) record.cost.bytes_written += launch.out(k).bytes();
    for (int k = 0; k < launch.inputs; ++k)
      if (!read_before(launch, k)) record.cost.bytes_read += launch.in(k).distinct_bytes();
  }
  launch_flushed(launch);
  record.end_ns = now_ns();
  door.ledger->records.push_back(record);
}

}  // namespace pb
