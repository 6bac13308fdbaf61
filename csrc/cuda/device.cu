// Devices, their streams, and the texts of their errors.
#include "cuda/device.h"

#include <pthread.h>

#include <map>
#include <mutex>
#include <utility>

#include "cuda/launch.cuh"

namespace pb::cuda {
namespace {

struct Device {
  std::once_flag once;
  cudaStream_t stream = nullptr;
  int multiprocessors = 0;
  Fault* fault = nullptr;       // pinned memory of the host
  unsigned* taken = nullptr;    // see FaultSink::taken
  unsigned* tickets = nullptr;  // kTickets counters
};
Device devices[kMaxDevices];
thread_local int current = 0;
thread_local Stream redirected = nullptr;
bool forked = false;  // true in the child of a process that has used a GPU

// The counters are cleared here, and this call waits for it. If they were cleared at their first use, the clearing could be
// captured into a graph, and they would hold garbage until that graph is launched.
void prepare(Device& device, int number) {
  static std::once_flag watching;
  std::call_once(watching, [] { pthread_atfork(nullptr, nullptr, [] { forked = true; }); });
  const BesideCaptures allowed;
  check(cudaSetDevice(number), "choosing a device");
  check(cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, number), "asking for multiprocessors");
  void* pinned = nullptr;
  check(cudaHostAlloc(&pinned, sizeof(Fault), cudaHostAllocMapped | cudaHostAllocPortable), "pinning memory");
  device.fault = new (pinned) Fault{};
  constexpr size_t kBytes = (kTickets + 1) * sizeof(unsigned);
  check(cudaMalloc(&device.tickets, kBytes), "allocating memory");
  device.taken = device.tickets + kTickets;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  check(cudaMemsetAsync(device.tickets, 0, kBytes, stream), "clearing memory");
  check(cudaStreamSynchronize(stream), "clearing memory");
  device.stream = stream;
}

Device& here() {
  Device& device = devices[current];
  if (__builtin_expect(forked, 0))
    throw Failure(
        "this process was forked from one that had used the GPU, and CUDA does not work in such a child. Start it with "
        "multiprocessing's \"spawn\" or \"forkserver\" (multiprocessing.get_context(\"spawn\")), use the GPU in the child "
        "only, "
        "or work on the CPU there, inside `with pb.use_device(\"cpu\"):`");
  std::call_once(device.once, [&device] { prepare(device, current); });
  return device;
}

bool several() {
  static const bool found = [] {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) (void)cudaGetLastError();
    return count > 1;
  }();
  return found;
}

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

// True for the errors of a failed kernel. Every later CUDA call of the process returns such an error again.
bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure: return true;
    default: return false;
  }
}

cudaStream_t stream_of(StreamNumber number) {
  switch (number) {
    case 0: return here().stream;
    case 1: return cudaStreamLegacy;
    case 2: return cudaStreamPerThread;
    default: return reinterpret_cast<cudaStream_t>(number);
  }
}

cudaEvent_t new_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return event;
}

}  // namespace

void fail(cudaError_t error, const char* doing) {
  (void)cudaGetLastError();
  if (error == cudaErrorMemoryAllocation) throw OutOfMemory(std::string(doing) + " found no memory on the GPU");
  std::string text = std::string(doing) + " failed: " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
  if (is_sticky(error))
    text +=
        ". A kernel went wrong, here or in an earlier op, and this process cannot use the GPU any more. Run it again with "
        "PULLBACK_CUDA_SYNC=1, which names the op";
  throw Failure(text);
}

void use_device(int device) {
  if (device == current && !several()) return;
  if (device < 0 || device >= kMaxDevices) throw Failure("no such device");
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
OnStream::OnStream(Stream stream) : before_(redirected) {
  (void)here();  // prepares the device before anything is captured
  redirected = stream;
}
OnStream::~OnStream() { redirected = before_; }
int multiprocessors() { return here().multiprocessors; }

bool needs_more_shared(const void* kernel, size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, size_t> granted;
  const std::lock_guard<std::mutex> lock(mutex);
  size_t& most = granted[{current_device(), kernel}];
  if (bytes <= most) return false;
  most = bytes;
  return true;
}
bool usable() { return !forked; }

void synchronize() {
  check(cudaStreamSynchronize(stream()), "waiting for the GPU");
  throw_fault();
}

// The driver copies pageable memory before the call returns, but reads pinned memory only when the stream gets there.
void upload(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const cudaStream_t stream = here().stream;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "copying to the GPU");
  cudaPointerAttributes source{};
  if (cudaPointerGetAttributes(&source, from) != cudaSuccess) (void)cudaGetLastError();
  if (source.type != cudaMemoryTypeUnregistered) check(cudaStreamSynchronize(stream), "copying to the GPU");
}

// ---- other streams

struct Moment {
  cudaEvent_t event;
};

// The event is destroyed at once: the driver keeps it for as long as a stream needs it.
void order(StreamNumber earlier, StreamNumber later) {
  const cudaStream_t first = stream_of(earlier), second = stream_of(later);
  if (first == second) return;
  const cudaEvent_t event = new_event();
  cudaError_t error = cudaEventRecord(event, first);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(second, event, 0);
  (void)cudaEventDestroy(event);
  check(error, "waiting for another stream");
}

Moment* moment_in(StreamNumber stream) noexcept {
  cudaEvent_t event = nullptr;
  try {
    const cudaStream_t at = stream_of(stream);
    event = new_event();
    check(cudaEventRecord(event, at), "recording an event");
    return new Moment{event};
  } catch (const std::exception&) {
    if (event) (void)cudaEventDestroy(event);
    return nullptr;
  }
}

bool passed(Moment* moment) noexcept {
  const BesideCaptures allowed;
  const cudaError_t state = cudaEventQuery(moment->event);
  if (state == cudaErrorNotReady) return false;
  if (state != cudaSuccess) {
    (void)cudaGetLastError();
    // The state of the event is unknown; after a sticky error nothing runs on the device any more, so the moment has passed.
    if (!is_sticky(state)) return false;
  }
  (void)cudaEventDestroy(moment->event);
  delete moment;
  return true;
}

void wait_for_all() {
  (void)here();
  check(cudaDeviceSynchronize(), "waiting for all streams of the GPU");
}

// ---- faults

FaultSink fault_sink(const Launch& launch) { return {here().fault, here().taken, launch.kernel}; }

void throw_fault() {
  Device& device = here();
  if (__builtin_expect(__atomic_load_n(&device.fault->set, __ATOMIC_ACQUIRE) == 0, 1)) return;
  const Fault found = *device.fault;
  device.fault->set = 0;
  check(cudaMemsetAsync(device.taken, 0, sizeof(unsigned), device.stream), "clearing memory");
  throw OutOfRange{found.where, found.index, found.length, found.kernel->name};
}

unsigned* tickets() { return here().tickets; }

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
