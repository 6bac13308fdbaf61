// Implements the functions that report the device and its attributes.
#include "cudasim/device.h"

#include <cstdlib>

#include "cudasim/launch.h"

using cudasim::report;

namespace {

constexpr int kVersion = 13000;
constexpr int kSharedPerMultiprocessor = 228 << 10;  // bytes

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return report(cudaErrorInvalidValue);
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (!device) return report(cudaErrorInvalidValue);
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : report(cudaErrorInvalidDevice); }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!value) return report(cudaErrorInvalidValue);
  if (device != 0) return report(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = int(cudasim::kMaxThreads); break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = int(cudasim::kSharedWithoutOptIn); break;
    case cudaDevAttrWarpSize: *value = int(cudasim::kWarp); break;
    case cudaDevAttrMultiProcessorCount: *value = cudasim::kMultiprocessors; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = cudasim::kThreadsPerMultiprocessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = kSharedPerMultiprocessor; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(cudasim::kMaxShared); break;
    default: return report(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  const char* text = std::getenv("CUDASIM_DRIVER");
  *version = text && *text ? std::atoi(text) : kVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
