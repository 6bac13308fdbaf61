// The exceptions that kernels throw, except those for wrong arguments.
#pragma once
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace pb {

// An index is outside its axis; `where` is its position in the flattened indices. The CPU reports the first such index, whatever
// the number of threads. A GPU reports one after the launch has returned, so `kernel` names the launch's kernel.
struct OutOfRange {
  int64_t where, index, length;
  const char* kernel = nullptr;
};

// A matrix of a batch has no result: an element is NaN or infinite; the leading block of `number` rows is not positive definite;
// the diagonal element `number` of a triangle is zero; elimination ends at a pivot of zero; or an iteration has not converged.
// caller: see families/linalg.h. place: the index of the matrix in the batch. The first such matrix is reported, whatever the number of threads, and a matrix with
// NaN or infinity before all others.
enum class Fault { not_finite, not_positive, zero_on_diagonal, singular, not_converged };
struct BadMatrix {
  const char* kernel;
  int64_t caller;
  Fault fault;
  std::vector<int64_t> place;
  int64_t number;
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
