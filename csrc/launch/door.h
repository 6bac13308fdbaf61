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

// What the layer above says of launches: numbers of a phase and a scope, and the precision of products (families/matmul.h).
struct Charge {
  int phase = 0, scope = 0;
  uint8_t precision = 0;
};

// Is told of launches before they run, and afterwards what they were for: those since the last time that are of this phase and of
// scope `from` are of scope `to`.
struct Recorder {
  virtual ~Recorder() = default;
  virtual void add(const Launch& launch, const Charge& charge) = 0;
  virtual void label(int phase, int from, int to) = 0;
};

// The state of a thread's door.
struct Door {
  Ledger* ledger = nullptr;
  Recorder* recorder = nullptr;
  Charge charge;
};
#if defined(PB_CUDA)  // not the quick way: CUDA's runtime brings 4 KB of thread-local memory, the simulator more
extern thread_local Door door;
#else
extern thread_local Door door __attribute__((tls_model("initial-exec")));
#endif

// Puts the charge of launches back as it was, at the end of a scope that changes it.
struct ChargeKept {
  const Charge before = door.charge;
  ~ChargeKept() { door.charge = before; }
};

void perform_recorded(const Launch& launch);
// What a ledger is told of a launch.
PlanRecord figures_of(const Launch& launch, const Charge& charge);

// Each backend brings these. perform runs the kernel, or puts it in the device's queue.
void perform(const Launch& launch);
// A moment in the order of launches, and then its time in nanoseconds of the monotonic clock: asked once for each mark, after
// the work before it is done, for which it waits.
int64_t mark();
int64_t time_of(int64_t mark);
#if defined(PB_CUDA)
constexpr bool kMarksAreTimes = false;
#else
constexpr bool kMarksAreTimes = true;  // of the host's clock
#endif
// Of arrays that kernels made, on this device.
int64_t live_bytes();
// Whether products of float32 go through tensor cores that round to TF32.
bool multiplies_in_tf32(const Charge& charge);

inline void run(const Launch& launch) {
  if (__builtin_expect(door.ledger || door.recorder || ledgers.load(std::memory_order_relaxed), 0))
    return perform_recorded(launch);
  perform(launch);
}

}  // namespace pb
