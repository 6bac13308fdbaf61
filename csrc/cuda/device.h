// The devices that kernels run on: one stream per device, and the faults that kernels find. Host code, independent of Python.
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

// Sends the following launches of this thread to `device`. Throws Failure if there is no such device.
void use_device(int device);
int current_device();

// Makes the current device CUDA's current device as well, for the lifetime of the object. Its destructor restores the device that
// was current before, which CuPy may have chosen for the thread.
class OnDevice {
 public:
  OnDevice();
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;
};

// Returns the stream of the current device, on which everything runs in order. The stream is non-blocking, and is created by the
// first call.
Stream stream();
// Redirects this thread's launches to another stream for its lifetime, to capture them into a graph.
class OnStream {
 public:
  explicit OnStream(Stream stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  Stream before_;
};
// Waits until the work of the current device is done. Throws OutOfRange if a kernel found an invalid index.
void synchronize();
// Copies from host memory, in stream order. The source may change once the call has returned: a copy from pinned memory waits.
void upload(void* to, const void* from, size_t bytes);

int multiprocessors();  // of the current device
// False in a process that was forked from one that had used a GPU. CUDA does not work there, so calls that need it throw Failure.
bool usable();

// ---- other streams

// A stream of another library, numbered as in DLPack and the CUDA array interface: 1 is the legacy default stream, 2 the calling
// thread's default stream, and any other number is a pointer. 0 is the stream of this module for the current device.
using StreamNumber = uintptr_t;
// Makes work that is added to `later` from now on wait for the work that is in `earlier` so far. The host does not wait.
void order(StreamNumber earlier, StreamNumber later);
// Returns a moment in a stream of the current device: the point after everything that the stream holds so far. Returns null if the
// driver cannot record it. A moment is host memory, which `passed` frees.
struct Moment;
Moment* moment_in(StreamNumber stream) noexcept;
// Returns true once the stream has reached the moment, and then frees the moment. Never waits.
bool passed(Moment* moment) noexcept;
// Waits for all streams of the current device, including those of other libraries.
void wait_for_all();

// ---- faults

// An index outside its axis, found by a kernel. The first fault is kept until it is thrown. It lies in memory shared by host and
// device, so the host can check it at no cost.
struct Fault {
  int set;  // 1 once the other members are written
  const Kernel* kernel;
  int64_t where, index, length;
};
// An argument of kernels that check indices. After a fault they go on, with a position inside the axis instead of the invalid one.
struct FaultSink {
  Fault* fault;
  unsigned* taken;  // device memory, 1 once a thread has claimed the report; only that thread writes the fault
  const Kernel* kernel;
};
FaultSink fault_sink(const Launch& launch);
// Throws OutOfRange if a kernel of the current device has found an invalid index since the last call. Does not wait.
void throw_fault();

// Arrival counters of blocks. All are 0 between launches: the last block to arrive resets its counter.
constexpr int64_t kTickets = 1 << 16;
// Counters of the current device; every launch may use all kTickets of them, because launches run one after another.
unsigned* tickets();

// ---- memory

// Memory of the current device, in bytes.
struct MemoryUse {
  size_t live;         // in use, by all holders
  size_t cached;       // free, and kept for later allocations
  size_t peak;         // the most that was in use at once, since the start or since reset_peak()
  size_t free, total;  // free and total memory of the device, as the driver reports them
  size_t of[kHolders];
};
MemoryUse memory_use();
// How often the allocators of all devices have asked the driver for memory and given memory back so far. The host may wait for the
// device in such a call.
struct DriverCalls {
  int64_t allocations, releases;
};
DriverCalls driver_calls();
void reset_peak();
// Returns the memory that is kept for later arrays to the driver. Returns the number of bytes.
size_t trim();
// Sets the function that is called before the last attempt to allocate, when the driver has no memory left. It releases the memory
// that other libraries keep for later, and may itself allocate and release memory here.
void free_memory_by(void (*release)());

// The CUDA versions that the driver supports and that this module was built for, as 13000 for 13.0. driver_version() returns 0 if
// there is no driver.
int driver_version();
int runtime_version();
// Returns the number of devices. If it is 0, `why` receives the reason.
int device_count(std::string& why);

}  // namespace pb::cuda
