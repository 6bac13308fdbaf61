// Launches: their configurations and limits, and kernels with their arguments.
#pragma once

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cudasim/error.h"
#include "cudasim/language.h"
#include "cudasim/shared.h"
#include "cudasim/stream.h"

enum cudaLaunchAttributeID {
  cudaLaunchAttributeIgnore = 0,
  cudaLaunchAttributeAccessPolicyWindow = 1,
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaLaunchAttributePriority = 8,
};
union cudaLaunchAttributeValue {
  char pad[64];
  int cooperative;
  struct {
    unsigned x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
  int priority;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};

namespace cudasim {

constexpr int kMultiprocessors = 16, kThreadsPerMultiprocessor = 2048, kBlocksPerMultiprocessor = 32;
constexpr size_t kMaxArguments = 32764;  // bytes

// A kernel's arguments, copied when it is launched. run() calls the kernel for one thread. with() returns copies of other arguments
// of the same kernel, to which it gets pointers.
struct Arguments {
  std::shared_ptr<void> values;
  void (*run)(void* values);
  Arguments (*with)(const void* values, void** arguments);
};

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, Arguments arguments);
cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
cudaError_t blocks_per_multiprocessor(int* blocks, const void* kernel, int threads, size_t dynamic);

template <class... E> const void* address_of(void (*kernel)(E...)) { return reinterpret_cast<const void*>(kernel); }

template <class... E, size_t... k>
Arguments arguments_at(void (*kernel)(E...), [[maybe_unused]] void** arguments, std::index_sequence<k...>);

template <class... E, class... A> Arguments arguments_of(void (*kernel)(E...), A&&... arguments) {
  static_assert((sizeof(E) + ... + 0) <= kMaxArguments, "a launch carries at most 32,764 bytes of arguments");
  struct Values {
    void (*kernel)(E...);
    std::tuple<E...> arguments;
  };
  auto values = std::make_shared<Values>(Values{kernel, std::tuple<E...>(static_cast<E>(std::forward<A>(arguments))...)});
  const auto run = [](void* p) { std::apply(static_cast<Values*>(p)->kernel, static_cast<Values*>(p)->arguments); };
  const auto with = [](const void* p, void** others) {
    return arguments_at(static_cast<const Values*>(p)->kernel, others, std::index_sequence_for<E...>());
  };
  return {std::move(values), run, with};
}

template <class... E, size_t... k>
Arguments arguments_at(void (*kernel)(E...), [[maybe_unused]] void** arguments, std::index_sequence<k...>) {
  return arguments_of(kernel, *static_cast<std::remove_cv_t<E>*>(arguments[k])...);
}

}  // namespace cudasim

template <class... E, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(E...), A&&... arguments) {
  static_assert(sizeof...(E) == sizeof...(A), "the kernel takes another number of arguments");
  if (!config) return cudasim::report(cudaErrorInvalidValue);
  return cudasim::launch(*config, cudasim::address_of(kernel), cudasim::arguments_of(kernel, std::forward<A>(arguments)...));
}

template <class... E>
cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(E...), dim3 blocks, dim3 threads, void** arguments, size_t dynamic = 0,
                                        cudaStream_t stream = nullptr) {
  cudaLaunchAttribute attribute{cudaLaunchAttributeCooperative, {}};
  attribute.val.cooperative = 1;
  return cudasim::launch({blocks, threads, dynamic, stream, &attribute, 1}, cudasim::address_of(kernel),
                         cudasim::arguments_at(kernel, arguments, std::index_sequence_for<E...>()));
}

template <class... E> cudaError_t cudaFuncSetAttribute(void (*kernel)(E...), cudaFuncAttribute attribute, int value) {
  return cudasim::set_attribute(cudasim::address_of(kernel), attribute, value);
}
template <class... E>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*kernel)(E...), int threads, size_t dynamic) {
  return cudasim::blocks_per_multiprocessor(blocks, cudasim::address_of(kernel), threads, dynamic);
}
