// Tables of kernels that Python calls as their signatures say, and what is read from a signature.
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "launch/door.h"

namespace pb {

// A row of a table: a kernel with its signature, such as
//
//   (x[..., n], weight[n]?, int labels[...], real eps, flag mean) -> y[..., n], gweight[n]
//
// which lists the arguments from Python and the results. The operands of the launch are the results and then the arrays among the
// arguments; `ints` and `reals` are the other arguments in their order. An array is written with its axes in brackets:
//   n         an axis of a length that is the same wherever its name stands; also a number, such as 2
//   ...       any number of axes, which are the same wherever they stand; only before other axes
//   .../a     these axes, but of length 1 along the axes `a`
//   (1)       an axis of length 1 that the operand has; an argument may lack it, and a result lacks it; only after other axes
//   ?         after the brackets: may be None. It is an operand only if it is not; in `ints` it is 1, or 0 for None.
// All arrays have one dtype, which is a float, unless a word before the name gives another one:
//   any       one dtype of any kind; the word stands before the first of these arrays only
//   int       any integer dtype, for indices, which the kernel may find out of range (OutOfRange)
//   i64       int64; also bool and, for a contiguous array, u64
//   wide      of a result: 64 bits if the dtype of the others is not a float (bool counts as an integer)
// Other arguments begin with what they are:
//   int, real, flag    numbers
//   axis, axes         one of the axes `...`, or several, as bits
//   length n           the length with this name, which is not among `ints`
//   shape              the axes `...`
//   dtype, any dtype   the dtype of the arrays: a float, or any
struct KernelRow {
  const Kernel* kernel;
  const char* signature;
  int work;  // flops for an element of the first argument or result that has all lengths (see run_released)
  // Returns why the kernel does not take the launch, whose results have shapes but no memory yet, or null if it does.
  const char* (*refuses)(const Launch&) = nullptr;
  const void* table = nullptr;  // that of the launch
};

// Adds the rows to those of all families. A family has its table where it defines its kernels.
struct KernelRows {
  KernelRows(std::initializer_list<KernelRow> rows);
};
const std::vector<KernelRow>& kernel_rows();

constexpr int kMostParts = 8;  // arguments or results; operands; names of lengths
constexpr int kMostAxes = 4;   // of an array, besides `...`

// A signature that has been read. The constructor throws std::logic_error if it cannot be.
struct Signature {
  enum Kind : uint8_t { array, integer, real, flag, axis, axes, length, shape, dtype };
  enum Type : uint8_t { shared, integers, i64, u64, b8, wide };
  struct Axis {
    int8_t name;     // the number of the name, or -1
    bool first;      // the name has not stood before
    int16_t length;  // if it has no name
  };
  // An argument or a result.
  struct Part {
    Kind kind = array;
    Type type = shared;
    bool optional = false, dots = false, cut = false, droppable = false;  // ?, ..., .../a, (1)
    int8_t axes = 0;                                                      // besides `...`
    Axis axis[kMostAxes];                                                 // of a length: the first has its name
  };

  KernelRow row;
  int arguments = 0, results = 0;
  Part argument[kMostParts], result[kMostParts];
  bool any = false, indexed = false;  // of any dtype; with indices
  // The array that gives the axes `...` and the dtype, which a call reads first, and its position among the operands. -1: other
  // arguments give them.
  int lead = -1, lead_operand = -1;
  int largest = 0;  // the position of the operand that `work` is for

  explicit Signature(const KernelRow& row);
};

}  // namespace pb
