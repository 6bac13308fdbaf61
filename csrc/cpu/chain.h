// Runs the chains of a group, and the update that may follow them, in one pass over blocks of elements that stay in the L1 cache.
// Each link runs the same loop as its launch alone, and rounds to the dtype that it stores, so the bits are the same.
#pragma once
#include <vector>

#include "cpu/arithmetic.h"
#include "cpu/map.h"
#include "cpu/stream.h"
#include "cpu/update.h"
#include "launch/plan.h"

namespace pb::cpu {

// The way in which a loop accesses one operand.
struct Source {
  enum class From : uint8_t {
    direct,   // contiguous elements of the type that the loop computes in
    convert,  // contiguous elements of another dtype
    strides,  // elements that a Reader stages
  } from;
  const View* view;
  int slot = -1;  // the number of the buffer that holds the elements of a block; -1 for elements in memory
};

// A step of a chain. loop: null for a cast or a copy.
struct Link {
  Loop loop;
  Compute compute, result;
  int inputs;
  bool direct;  // all operands are
  Source in[kMaxArity], out;
};

// A number that is repeated for a block, in a buffer.
struct Splat {
  size_t operand;  // its index in the plan
  const View* view;
  Compute compute;
  int slot;
};

// Elements of an entry of the update that follows: element `start` of the chain is the entry's first one.
struct Piece {
  int entry;
  int64_t start, size;
  Source gradient;
};

// An array in memory that a run touches: its first element together with element `start` of the run.
struct Stream {
  const View* view;
  int64_t start;
};

// An instruction of a chain's program, before the addresses of a block are in it. link: the link that it is a part of.
struct LinkInstruction {
  Code code;
  Source source;
  int link;
};

// A chain, or the entry of an update that no chain precedes.
struct ChainRun {
  int64_t n, first_block;  // the number of elements, and of the blocks of the runs before it
  std::vector<Link> links;
  std::vector<Splat> splats;
  std::vector<Piece> pieces;
  std::vector<Stream> streams;
  std::vector<LinkInstruction> program = {};  // does the work of all links; empty if they run one after another
  Compute compute = Compute::f32;             // of the program
};

// True for the launch of an elementwise op, which has a loop.
inline bool is_map(const Step& step) { return step.launch.kernel->run == map; }

class Pass {
 public:
  Pass(const Plan& plan, const Group& group);
  void run() const;

 private:
  class Buffers;
  void add_chain(const Plan& plan, const Chain& chain, const std::vector<bool>& kept);
  void add_update(const Plan& plan, const Group& group);
  void make_program(const Plan& plan, const Chain& chain, const std::vector<bool>& kept, ChainRun& run) const;
  void add_prefetches(ChainRun& run);
  void add_stream(const Plan& plan, size_t operand, int64_t start, ChainRun& run);
  void add_run(ChainRun run, int64_t work);
  Source source_of(const Plan& plan, size_t operand, Compute compute, ChainRun* run = nullptr);
  void run_blocks(int64_t begin, int64_t end, const UpdateStep* update) const;
  void run_range(const ChainRun& run, int64_t begin, int64_t end, Buffers& buffers, const UpdateStep* update) const;
  void address(const ChainRun& run, int64_t i, Buffers& buffers) const;
  void run_program(const ChainRun& run, int64_t i, int64_t n, Buffers& buffers) const;
  void run_link(const Link& link, int64_t i, int64_t from, int64_t n, const Buffers& buffers) const;

  std::vector<ChainRun> runs_;
  const Launch* update_ = nullptr;
  int64_t blocks_ = 0, most_work_ = 1, locals_, splats_ = 0, instructions_ = 0;
};

}  // namespace pb::cpu
