// A table of named tests, checks that report where they failed, and arrays that are copied to the device and back.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/runtime.h"

struct Test {
  const char* name;
  void (*run)();
};

inline int failed_checks = 0;
inline const char* running_test = "";

inline void expect(bool ok, const char* what, const char* file, int line) {
  if (ok) return;
  ++failed_checks;
  std::printf("%s:%d: %s: %s\n", file, line, running_test, what);
}
#define EXPECT(...) expect(bool(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)
#define EXPECT_OK(call) expect((call) == cudaSuccess, #call, __FILE__, __LINE__)

// Runs all tests, or those whose name contains `only`, and returns the number of failed tests.
template <size_t count> int run_tests(const Test (&tests)[count], const char* only) {
  int run = 0, failed = 0;
  for (const Test& test : tests) {
    if (only && !std::strstr(test.name, only)) continue;
    running_test = test.name;
    const int before = failed_checks;
    test.run();
    expect(cudaGetLastError() == cudaSuccess, "an error was left behind", test.name, 0);
    ++run;
    failed += failed_checks != before;
  }
  std::printf("%d tests, %d failed\n", run, failed);
  return failed;
}

// An array in device memory.
template <class T> class Device {
 public:
  explicit Device(size_t n) : n_(n) { EXPECT_OK(cudaMalloc(&p_, n * sizeof(T))); }
  Device(const std::vector<T>& values) : Device(values.size()) {
    EXPECT_OK(cudaMemcpy(p_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  Device(size_t n, T value) : Device(std::vector<T>(n, value)) {}
  Device(const Device&) = delete;
  ~Device() { EXPECT_OK(cudaFree(p_)); }

  operator T*() const { return p_; }
  T* get() const { return p_; }
  size_t size() const { return n_; }
  std::vector<T> host() const {
    std::vector<T> values(n_);
    EXPECT_OK(cudaMemcpy(values.data(), p_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t n_;
  T* p_ = nullptr;
};

// The configuration of a launch. Calling it launches a kernel: Launch(blocks, threads)(kernel, arguments...).
class Launch {
 public:
  Launch(dim3 blocks, dim3 threads, size_t dynamic = 0, cudaStream_t stream = nullptr) {
    config_.gridDim = blocks;
    config_.blockDim = threads;
    config_.dynamicSmemBytes = dynamic;
    config_.stream = stream;
  }
  Launch& cooperative() {
    attribute_.id = cudaLaunchAttributeCooperative;
    attribute_.val.cooperative = 1;
    config_.numAttrs = 1;
    return *this;
  }
  template <class... E, class... A> cudaError_t operator()(void (*kernel)(E...), A&&... arguments) {
    config_.attrs = config_.numAttrs ? &attribute_ : nullptr;
    return cudaLaunchKernelEx(&config_, kernel, static_cast<E>(arguments)...);
  }

 private:
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attribute_{};
};

inline std::vector<float> normal(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, 2);
  std::vector<float> values(n);
  for (float& value : values) value = draw(random);
  return values;
}

// Returns the norm of the difference relative to the norm of `exact`.
template <class T, class U> double relative_error(const std::vector<T>& got, const std::vector<U>& exact) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    difference += (double(got[i]) - double(exact[i])) * (double(got[i]) - double(exact[i]));
    norm += double(exact[i]) * double(exact[i]);
  }
  return got.size() == exact.size() ? std::sqrt(difference / norm) : INFINITY;
}
