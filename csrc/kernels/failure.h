// What kernels can throw beyond what their arguments allow.
#pragma once
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

namespace pb::kernels {

// An index outside its axis: `where` is its position in the flattened index. On the CPU the first one, whatever the threads
// did. A GPU tells later, of an earlier launch: `kernel` is its name.
struct OutOfRange {
  int64_t where, index, length;
  const char* kernel = nullptr;
};

// The device says no, in words for the user.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A device is full; the message tells how full.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace pb::kernels
