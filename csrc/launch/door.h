// The one door: every kernel is launched here, so one place knows the phase, the scope and the cost of each.
#pragma once

#include "launch/ledger.h"
#include "launch/shape.h"

namespace pb {

struct Launch;

// One row of the table of kernels. `cost` fills in FLOPs and special ops, by the same formula everywhere; the door adds the bytes
// of the operands, unless the kernel moves other bytes and says so by setting them. `executed` turns this work into what this
// backend's kernel does (see families/executed.h); null where that is the same.
struct Kernel {
  const char* name;
  void (*run)(const Launch&);
  void (*cost)(const Launch&, Cost&);
  void (*executed)(const Launch&, Counts& work) = nullptr;
};

constexpr int kMaxInts = 8, kMaxReals = 8;

// A kernel with its arguments, as plain data: it can be run, counted, recorded, and run again.
// operands: the outputs first, then the inputs, in memory that lives as long as the launch.
struct Launch {
  const Kernel* kernel;
  int outputs, inputs;
  View* operands;
  int64_t ints[kMaxInts];
  double reals[kMaxReals];
  const void* table;  // what a family keeps about the op beyond its kernel (see the family's header)

  View& out(int k = 0) const { return operands[k]; }
  View& in(int k = 0) const { return operands[outputs + k]; }
};

// What launches are attributed to: the numbers of a phase and a scope, which the layer above defines; and the precision of products
// (families/matmul.h).
struct Attribution {
  int phase = 0, scope = 0;
  uint8_t precision = 0;
};

// Receives every launch before it runs (`add`). `label` corrects scopes afterwards: launches added since the previous `label` that
// have this phase and scope `from` are re-attributed to scope `to`.
struct Recorder {
  virtual ~Recorder() = default;
  virtual void add(const Launch& launch, const Attribution& attribution) = 0;
  virtual void label(int phase, int from, int to) = 0;
};

// The state of a thread's door.
struct Door {
  Ledger* ledger = nullptr;
  Recorder* recorder = nullptr;
  Attribution attribution;
};
#if defined(PB_CUDA)  // not the quick way: CUDA's runtime brings 4 KB of thread-local memory, the simulator more
extern thread_local Door door;
#else
extern thread_local Door door __attribute__((tls_model("initial-exec")));
#endif

// Restores the attribution of launches at the end of a C++ scope that changes it.
struct RestoreAttribution {
  const Attribution before = door.attribution;
  ~RestoreAttribution() { door.attribution = before; }
};

void perform_recorded(const Launch& launch);
// Returns the ledger entry of a launch (its key and its cost) without recording it.
PlanRecord figures_of(const Launch& launch, const Attribution& attribution);

// Each backend brings these. perform runs the kernel, or puts it in the device's queue.
void perform(const Launch& launch);
// mark() records a point in the order of launches. time_of(mark) waits for the work before that point and returns its time in
// nanoseconds of the monotonic clock; call it once per mark.
int64_t mark();
int64_t time_of(int64_t mark);
#if defined(PB_CUDA)
constexpr bool kMarksAreTimes = false;
#else
constexpr bool kMarksAreTimes = true;  // of the host's clock
#endif
// Returns the number of bytes held by arrays that kernels allocated on this device.
int64_t live_bytes();
// Whether products of float32 go through tensor cores that round to TF32.
bool multiplies_in_tf32(const Attribution& attribution);

inline void run(const Launch& launch) {
  if (__builtin_expect(door.ledger || door.recorder || ledgers.load(std::memory_order_relaxed), 0))
    return perform_recorded(launch);
  perform(launch);
}

}  // namespace pb
