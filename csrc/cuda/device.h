// The devices that kernels run on: one stream each, and what a kernel found wrong. Host code; knows nothing of Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "launch/memory.h"
#include "launch/door.h"

#if defined(__CUDACC__) || !defined(PB_CUDASIM)
struct CUstream_st;
#else
#include "cudasim/stream.h"
#endif

namespace pb::cuda {

using Stream = CUstream_st*;
constexpr int kMaxDevices = 16;

// Launches of this thread go to this device from now on. Throws Failure where there is none.
void use_device(int device);
int current_device();

// While it lives, the current device is CUDA's too; then the caller's is again, which CuPy may have chosen for the thread.
class OnDevice {
 public:
  OnDevice();
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;
};

// The stream of the current device, on which everything runs in order; made when first asked for, non-blocking.
Stream stream();
// While it lives, this thread's launches go to another stream, which a graph is made from.
class OnStream {
 public:
  explicit OnStream(Stream stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  Stream before_;
};
// Waits until the work of the current device is done. Throws what it found wrong.
void synchronize();
// Copies from the host's memory, in the order of the stream. The source may change once the call has returned. Waits if it is pinned.
void upload(void* to, const void* from, size_t bytes);

int multiprocessors();  // of the current device
// False in a process that was forked from one that had used a GPU: CUDA does not work there, and every call above throws.
bool usable();

// ---- other streams

// A stream of somebody else, as DLPack and the CUDA array interface number them: 1 is the legacy default stream, 2 the calling
// thread's default stream, and any other number is a pointer. 0 is the current device's stream of this module.
using StreamNumber = uintptr_t;
// Work that `later` is given from now on waits for what `earlier` has been given so far. Nothing waits on the host.
void order(StreamNumber earlier, StreamNumber later);
// A moment in a stream of the current device, after everything that the stream has been given so far; null if the driver refuses
// to mark it. Host memory, which `passed` gives back.
struct Moment;
Moment* moment_in(StreamNumber stream) noexcept;
// True once the stream has come that far. Never waits; forgets the moment when it has passed.
bool passed(Moment* moment) noexcept;
// Waits for all streams of the current device, also those of other libraries.
void wait_for_all();

// ---- faults

// An index outside its axis, found by a kernel. The first one is kept until it has been thrown. It lies in memory that host and
// device share, so that looking at it costs nothing.
struct Fault {
  int set;  // 1 when the rest is written
  const Kernel* kernel;
  int64_t where, index, length;
};
// Given to kernels that check indices. They read or write a place inside the axis instead, and go on.
struct FaultSink {
  Fault* fault;
  unsigned* taken;  // 1 once a thread has chosen to report, in the device's memory: only that thread writes the fault
  const Kernel* kernel;
};
FaultSink fault_sink(const Launch& launch);
// Throws OutOfRange if a kernel of the current device found something wrong since the last look; does not wait.
void throw_fault();

// Arrival counters of blocks. All are 0 between launches: the last block to arrive resets its counter.
constexpr int64_t kTickets = 1 << 16;
unsigned* tickets();  // of the current device; every launch may use all kTickets of them, since launches follow one another

// ---- memory

// Bytes of the current device.
struct MemoryUse {
  size_t live;         // in use, by all holders together
  size_t cached;       // free, and kept for later allocations
  size_t peak;         // the most that was in use at once, since the start or since reset_peak
  size_t free, total;  // as the driver says
  size_t of[kHolders];
};
MemoryUse memory_use();
void reset_peak();
// Gives the memory that is kept for later arrays back to the driver. Returns how many bytes.
size_t trim();
// Called when the driver has no memory left, before the last try: releases what other libraries keep for later. It may take and
// release memory itself.
void free_memory_by(void (*release)());

// The versions that the driver and this module were made for, as 13000 for 13.0; 0 where there is no driver.
int driver_version();
int runtime_version();
// How many devices there are. `why` says why there is none.
int device_count(std::string& why);

}  // namespace pb::cuda
