// Checks launches against the limits of the hardware, and submits them to their streams.
#include "cudasim/launch.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>

#include "cudasim/floating_mode.h"
#include "cudasim/grid.h"
#include "cudasim/symbols.h"

namespace cudasim {
namespace {

struct KernelFacts {
  size_t max_dynamic = kSharedWithoutOptIn, own_shared = 0;
};

std::mutex mutex;

// Appends the name of a kernel to the file that CUDASIM_KERNELS names, so that a test learns which kernels a program launches.
void list_kernel(const void* kernel) {
  if (const char* path = std::getenv("CUDASIM_KERNELS")) std::ofstream(path, std::ios::app) << name_of(kernel) << '\n';
}

// Returns the facts of a kernel, which the first call collects. The caller holds the mutex.
KernelFacts& facts_of(const void* kernel) {
  static std::map<const void*, KernelFacts> facts;
  const auto [at, is_new] = facts.try_emplace(kernel);
  if (is_new) {
    at->second.own_shared = own_shared_bytes(kernel);
    list_kernel(kernel);
  }
  return at->second;
}

bool fits(dim3 size, unsigned x, unsigned y, unsigned z) {
  return size.x >= 1 && size.y >= 1 && size.z >= 1 && size.x <= x && size.y <= y && size.z <= z;
}

unsigned most_blocks_along_y_or_z() {
  constexpr unsigned kMost = 65535;
  const char* text = std::getenv("CUDASIM_GRID_YZ");
  return text && *text ? std::min(unsigned(std::strtoul(text, nullptr, 10)), kMost) : kMost;
}

int blocks_that_fit(unsigned threads, size_t shared) {
  constexpr size_t kReserved = 1 << 10, kPerMultiprocessor = 228 << 10;
  const unsigned rounded = (threads + kWarp - 1) / kWarp * kWarp;
  return std::min(
      {kBlocksPerMultiprocessor, kThreadsPerMultiprocessor / int(rounded), int(kPerMultiprocessor / (shared + kReserved))});
}

cudaError_t check_size(const cudaLaunchConfig_t& config, const KernelFacts& facts) {
  const dim3 blocks = config.gridDim, threads = config.blockDim;
  if (!fits(threads, 1024, 1024, 64) || uint64_t(threads.x) * threads.y * threads.z > kMaxThreads)
    return cudaErrorInvalidConfiguration;
  const unsigned others = most_blocks_along_y_or_z();
  if (!fits(blocks, 0x7fffffff, others, others)) return cudaErrorInvalidConfiguration;
  if (uint64_t(blocks.x) * blocks.y > 0x7fffffff / blocks.z) return cudaErrorNotSupported;  // would take days here
  if (config.dynamicSmemBytes > facts.max_dynamic) return cudaErrorInvalidValue;
  if (config.dynamicSmemBytes + facts.own_shared > kMaxShared) return cudaErrorInvalidValue;
  return cudaSuccess;
}

cudaError_t read_attributes(const cudaLaunchConfig_t& config, Grid& grid) {
  for (unsigned k = 0; k < config.numAttrs; ++k) {
    const cudaLaunchAttribute& attribute = config.attrs[k];
    if (attribute.id == cudaLaunchAttributeCooperative) grid.cooperative = attribute.val.cooperative != 0;
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      const auto& cluster = attribute.val.clusterDim;
      if (cluster.x * cluster.y * cluster.z > 1) return cudaErrorNotSupported;
    }
  }
  return cudaSuccess;
}

Work work_of(const Grid& grid, const void* kernel, const Arguments& arguments, const FloatingMode& mode) {
  const auto run = [grid, kernel, arguments, mode] {
    const FloatingMode before;
    mode.set();
    run_grid(grid, {arguments.run, arguments.values.get(), kernel});
    before.set();
  };
  const auto with = [grid, kernel, arguments, mode](dim3 blocks, dim3 threads, size_t shared, void** others) {
    return work_of({blocks, threads, shared, grid.cooperative}, kernel, arguments.with(arguments.values.get(), others), mode);
  };
  return {WorkKind::kKernel, run, kernel, with};
}

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, Arguments arguments) {
  if (!kernel) return report(cudaErrorInvalidDeviceFunction);
  Grid grid{config.gridDim, config.blockDim, config.dynamicSmemBytes, false};
  {
    const std::lock_guard lock(mutex);
    const KernelFacts& facts = facts_of(kernel);
    if (const cudaError_t error = check_size(config, facts)) return report(error);
    if (const cudaError_t error = read_attributes(config, grid)) return report(error);
    const dim3 blocks = grid.blocks, threads = grid.threads;
    const int fit = blocks_that_fit(threads.x * threads.y * threads.z, grid.dynamic_shared + facts.own_shared);
    if (grid.cooperative && blocks.x * blocks.y * blocks.z > unsigned(fit * kMultiprocessors)) {
      return report(cudaErrorCooperativeLaunchTooLarge);
    }
  }
  return submit(config.stream, work_of(grid, kernel, arguments, FloatingMode()));
}

cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  const std::lock_guard lock(mutex);
  KernelFacts& facts = facts_of(kernel);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || size_t(value) + facts.own_shared > kMaxShared) {
    return report(cudaErrorInvalidValue);
  }
  facts.max_dynamic = size_t(value);
  return cudaSuccess;
}

cudaError_t blocks_per_multiprocessor(int* blocks, const void* kernel, int threads, size_t dynamic) {
  if (!blocks || threads < 1 || threads > int(kMaxThreads)) return report(cudaErrorInvalidValue);
  const std::lock_guard lock(mutex);
  *blocks = blocks_that_fit(unsigned(threads), dynamic + facts_of(kernel).own_shared);
  return cudaSuccess;
}

}  // namespace cudasim
