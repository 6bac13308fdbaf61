// Devices, their streams, and errors in words.
#include "cuda/device.h"

#include <cstdlib>
#include <mutex>

#include "cuda/launch.cuh"

namespace pb::cuda {
namespace {

struct Device {
  std::once_flag once;
  cudaStream_t stream = nullptr;
  int multiprocessors = 0;
};
Device devices[kMaxDevices];
thread_local int current = 0;

void prepare(Device& device, int number) {
  check(cudaSetDevice(number), "choosing a device");
  check(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking), "making a stream");
  check(cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, number), "asking for multiprocessors");
}

Device& here() {
  Device& device = devices[current];
  std::call_once(device.once, [&device] { prepare(device, current); });
  return device;
}

// For all devices one, made when first asked for: it is pinned.
Fault* fault() {
  static Fault* const shared = [] {
    void* p = nullptr;
    check(cudaHostAlloc(&p, sizeof(Fault), cudaHostAllocMapped | cudaHostAllocPortable), "pinning memory");
    return new (p) Fault{};
  }();
  return shared;
}
thread_local Stream redirected = nullptr;

int fault_state() { return *static_cast<volatile int*>(&fault()->set); }

bool several() {
  static const bool found = [] {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) (void)cudaGetLastError();
    return count > 1;
  }();
  return found;
}

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

}  // namespace

void fail(cudaError_t error, const char* doing) {
  (void)cudaGetLastError();
  if (error == cudaErrorMemoryAllocation) throw kernels::OutOfMemory(std::string(doing) + " found no memory on the GPU");
  throw kernels::Failure(std::string(doing) + " failed: " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) +
                         "). After an error inside a kernel this process cannot use the GPU any more; run it again with "
                         "PULLBACK_CUDA_SYNC=1, which names the op that caused it.");
}

void use_device(int device) {
  if (device == current && !several()) return;
  if (device < 0 || device >= kMaxDevices) throw kernels::Failure("no such device");
  check(cudaSetDevice(device), "choosing a device");
  current = device;
}
int current_device() { return current; }

OnDevice::OnDevice() {
  if (!several()) return;
  check(cudaGetDevice(&before_), "asking for the device");
  if (before_ != current) check(cudaSetDevice(current), "choosing a device");
}
OnDevice::~OnDevice() {
  if (before_ >= 0) (void)cudaSetDevice(before_);
}

Stream stream() { return redirected ? redirected : here().stream; }
OnStream::OnStream(Stream stream) : before_(redirected) { redirected = stream; }
OnStream::~OnStream() { redirected = before_; }
int multiprocessors() { return here().multiprocessors; }

void synchronize() {
  check(cudaStreamSynchronize(stream()), "waiting for the GPU");
  throw_fault();
}

FaultSink fault_sink(const Launch& launch) { return {fault(), launch.kernel}; }

void throw_fault() {
  if (fault_state() != 2) return;
  const Fault found = *fault();
  fault()->set = 0;
  throw kernels::OutOfRange{found.where, found.index, found.length, found.kernel->name};
}

int driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess) (void)cudaGetLastError();
  return version;
}
int runtime_version() {
  int version = 0;
  if (cudaRuntimeGetVersion(&version) != cudaSuccess) (void)cudaGetLastError();
  return version;
}

int device_count(std::string& why) {
  const int driver = driver_version(), needed = runtime_version() / 1000 * 1000;
  if (driver == 0) {
    why = "no NVIDIA driver was found";
    return 0;
  }
  if (driver < needed) {
    why = "the NVIDIA driver is too old: it knows CUDA " + version_text(driver) + ", and " + version_text(needed) +
          " or later is needed; install a newer driver";
    return 0;
  }
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    (void)cudaGetLastError();
    why = std::string("the driver finds no GPU: ") + cudaGetErrorString(error);
    return 0;
  }
  if (count == 0) why = "the driver finds no GPU";
  return count;
}

}  // namespace pb::cuda
