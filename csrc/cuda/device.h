// The devices that kernels run on: one stream each, and what a kernel found wrong. Host code; knows nothing of Python.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "launch/door.h"

#if defined(__CUDACC__) || !defined(PB_CUDASIM)
struct CUstream_st;
#else
#include "cudasim/stream.h"
#endif

namespace pb::cuda {

using Stream = CUstream_st*;
constexpr int kMaxDevices = 16;

// Launches of this thread go to this device from now on. Throws kernels::Failure where there is none.
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

int multiprocessors();  // of the current device

// What a kernel found wrong in its arguments: an index outside its axis. The first one is kept until it has been thrown.
// In memory that host and device share, so that looking at it costs nothing.
struct Fault {
  int set;
  const Kernel* kernel;
  int64_t where, index, length;
};
// Given to kernels that check indices. They read or write a place inside the axis instead, and go on.
struct FaultSink {
  Fault* fault;
  const Kernel* kernel;
};
FaultSink fault_sink(const Launch& launch);
// Throws kernels::Failure if a kernel found something wrong since the last look; does not wait.
void throw_fault();

// Bytes that arrays and scratch hold, and bytes kept for later ones.
struct MemoryUse {
  size_t used, cached, free, total;
};
MemoryUse memory_use();
// Gives the memory that is kept for later arrays back to the driver.
void trim();

// The versions that the driver and this module were made for, as 13000 for 13.0; 0 where there is no driver.
int driver_version();
int runtime_version();
// How many devices there are. `why` says why there is none.
int device_count(std::string& why);

}  // namespace pb::cuda
