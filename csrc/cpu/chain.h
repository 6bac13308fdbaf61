// Elementwise launches that follow each other, in one pass over blocks that stay in the first-level cache. Each is the loop that
// runs alone, and rounds to the type that it stores: the same bits.
#pragma once
#include <vector>

#include "cpu/map.h"
#include "cpu/stream.h"
#include "launch/plan.h"

namespace pb::cpu {

// How a loop gets at one operand.
struct Source {
  enum class From : uint8_t {
    memory,   // elements in order, of the type that the loop computes in
    convert,  // in order, of a narrower type
    strides,  // through a Reader
    splat,    // one number, repeated for a block
  } from;
  const View* view;
  int local = -1;  // of the program, where it is one
};

struct Link {
  Loop loop;
  Compute compute, result;
  int inputs;
  Source in[kMaxArity], out;
};

class Chain {
 public:
  Chain(const Plan& plan, const Group& group);
  void run() const;

 private:
  void run_range(int64_t begin, int64_t end) const;
  void run_block(const Link& link, int64_t i, int64_t n, char* locals) const;
  const void* read(const Source& source, Compute compute, int64_t i, int64_t n, char* locals, char* buffer) const;
  Source source_of(const Plan& plan, size_t operand, Compute compute);

  std::vector<Link> links_;
  std::vector<std::vector<char>> splats_;
  int64_t n_, grain_, locals_;
};

}  // namespace pb::cpu
