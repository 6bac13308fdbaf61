// The exceptions of kernels, apart from those for wrong arguments.
#pragma once
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

namespace pb {

// An index outside its axis: `where` is its position in the flattened indices. The CPU reports the first such index for any number
// of threads. A GPU reports it after the launch, whose kernel is then named by `kernel`.
struct OutOfRange {
  int64_t where, index, length;
  const char* kernel = nullptr;
};

// The device refused, for a reason in words for the user.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A device is full. The message says how full.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace pb
