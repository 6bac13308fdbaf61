// Implements the functions that report the properties of the device.
#include "cudasim/device.h"

#include <cstdio>
#include <cstdlib>

#include "cudasim/launch.h"

using cudasim::report;

namespace {

constexpr int kVersion = 13000;
constexpr size_t kSharedPerMultiprocessor = 228 << 10;

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

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!properties) return report(cudaErrorInvalidValue);
  if (device != 0) return report(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "CUDA simulator");
  properties->totalGlobalMem = size_t{16} << 30;
  properties->sharedMemPerBlock = cudasim::kSharedWithoutOptIn;
  properties->sharedMemPerBlockOptin = cudasim::kMaxShared;
  properties->sharedMemPerMultiprocessor = kSharedPerMultiprocessor;
  properties->regsPerBlock = 65536;
  properties->warpSize = warpSize;
  properties->maxThreadsPerBlock = int(cudasim::kMaxThreads);
  const int threads[3] = {1024, 1024, 64}, blocks[3] = {2147483647, 65535, 65535};
  for (int k = 0; k < 3; ++k) {
    properties->maxThreadsDim[k] = threads[k];
    properties->maxGridSize[k] = blocks[k];
  }
  properties->major = 9;
  properties->multiProcessorCount = cudasim::kMultiprocessors;
  properties->maxThreadsPerMultiProcessor = cudasim::kThreadsPerMultiprocessor;
  properties->maxBlocksPerMultiProcessor = cudasim::kBlocksPerMultiprocessor;
  properties->l2CacheSize = 50 << 20;
  properties->cooperativeLaunch = properties->concurrentKernels = 1;
  properties->managedMemory = properties->unifiedAddressing = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (!value) return report(cudaErrorInvalidValue);
  if (const cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = int(p.sharedMemPerBlock); break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = int(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrCooperativeLaunch: *value = p.cooperativeLaunch; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(p.sharedMemPerBlockOptin); break;
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
