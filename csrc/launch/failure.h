// The exceptions that kernels throw, except those for wrong arguments.
#pragma once
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

namespace pb {

// An index is outside its axis; `where` is its position in the flattened indices. The CPU reports the first such index, whatever
// the number of threads. A GPU reports one after the launch has returned, so `kernel` names the launch's kernel.
struct OutOfRange {
  int64_t where, index, length;
  const char* kernel = nullptr;
};

// The device failed. The message explains the reason to the user.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A device has no memory left. The message says how much is in use.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace pb
