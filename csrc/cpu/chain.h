// A chain runs consecutive elementwise launches in one pass over blocks of elements that stay in the L1 cache. Each link runs the
// same loop as its launch alone, and rounds to the dtype that it stores, so the bits are the same.
#pragma once
#include <vector>

#include "cpu/map.h"
#include "cpu/stream.h"
#include "launch/plan.h"

namespace pb::cpu {

// The way in which a loop accesses one operand.
struct Source {
  enum class From : uint8_t {
    memory,   // contiguous elements of the type that the loop computes in
    convert,  // contiguous elements of another dtype
    strides,  // elements that a Reader stages
    splat,    // one number, repeated for a block
  } from;
  const View* view;
  int local = -1;  // the number of the local block, or of the splat; -1 if it is neither
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
