// Every launch passes the door, which is run(), so that one place can record its phase, its scope and its cost.
#pragma once

#include "launch/ledger.h"
#include "launch/shape.h"

namespace pb {

struct Launch;

// An entry of the table of kernels. `cost` fills in FLOPs and special ops by a formula that is the same on every backend. It also
// sets the bytes if the kernel moves other bytes than those of its operands; otherwise the door adds these. `executed` turns the
// formula's work into the work that this backend's kernel does (see families/executed.h); it is null if both are the same.
struct Kernel {
  const char* name;
  void (*run)(const Launch&);
  void (*cost)(const Launch&, Cost&);
  void (*executed)(const Launch&, Counts& work) = nullptr;
};

constexpr int kMaxInts = 8, kMaxReals = 8;

// A launch is a kernel with its arguments, as plain data: it can be run, counted, recorded and run again.
// operands: the outputs first, then the inputs. Their memory must live as long as the launch.
struct Launch {
  const Kernel* kernel;
  int outputs, inputs;
  View* operands;
  int64_t ints[kMaxInts];
  double reals[kMaxReals];
  const void* table;  // the family's data about the op, such as its counts (see the family's header)

  View& out(int k = 0) const { return operands[k]; }
  View& in(int k = 0) const { return operands[outputs + k]; }
};

// The phase and the scope that launches are attributed to, as numbers that the layer above defines, and the precision of products
// (see families/matmul.h).
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

// The state of the door. Each thread has its own.
struct Door {
  Ledger* ledger = nullptr;
  Recorder* recorder = nullptr;
  Attribution attribution;
};
#if defined(PB_CUDA)  // not initial-exec: CUDA's runtime takes 4 KB of the small space for it, and the simulator takes more
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

// Each backend defines the following functions. perform() runs the kernel, or puts it into the device's queue.
void perform(const Launch& launch);
// mark() records a point in the order of launches. time_of(mark) waits for the work before that point and returns its time in
// nanoseconds of the monotonic clock; call it once per mark.
int64_t mark();
int64_t time_of(int64_t mark);
#if defined(PB_CUDA)
constexpr bool kMarksAreTimes = false;
#else
constexpr bool kMarksAreTimes = true;  // in nanoseconds of the host's clock
#endif
// Returns the number of bytes held by arrays that kernels allocated on this device.
int64_t live_bytes();
// True if a launch's float32 products, which have `flops` FLOPs together, run on tensor cores that round their factors to TF32.
bool multiplies_in_tf32(const Launch& launch, const Attribution& attribution, double flops);

inline void run(const Launch& launch) {
  if (__builtin_expect(door.ledger || door.recorder || ledgers.load(std::memory_order_relaxed), 0))
    return perform_recorded(launch);
  perform(launch);
}

}  // namespace pb
