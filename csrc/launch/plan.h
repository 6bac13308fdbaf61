// A plan is a recorded list of launches that can be replayed. It holds the memory that each launch touches, drops launches whose
// results are unused, and lays out the temporaries.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "launch/door.h"

namespace pb {

// The kinds of blocks. Memory whose address does not change between replays (parameters, optimizer slots, constants) does not
// belong to any block.
enum class BlockKind : uint8_t {
  input,   // memory that the caller passes to each replay
  result,  // allocated anew by each replay, for the caller to keep
  arena,   // temporaries in one shared allocation, which reuse one another's memory
  local,   // temporaries of one chain, of which only a block of elements exists at a time
};

// A block is memory that was one allocation when it was recorded.
struct Block {
  BlockKind kind;
  int64_t bytes;
  int64_t offset = 0;         // offset in the arena in bytes; for a local block, the number of its buffer
  int first = -1, last = -1;  // the first and the last group that touch it; -1 if none does
};

// The block that holds an operand, and the operand's offset in it.
struct OperandLocation {
  int block;       // -1 for memory that belongs to no block
  int64_t offset;  // in bytes; for a number passed by value, its index in the plan's numbers
};

// An operand of a recorded launch.
struct Operand {
  View view;
  OperandLocation location;
};

// A step is a launch with the attribution that it was recorded with.
struct Step {
  Launch launch;
  size_t operand;  // the index of its first operand in the plan
  Attribution attribution;
  int number;                            // the launch's number in the recording
  std::vector<const char*> names;        // the names of the recorded launches that it performs
  const char* unfused_reason = nullptr;  // why it is not in the group of the previous step
  int checks = 0;                        // of these launches, the number of the one that checks indices
};

// A chain is a run of elementwise steps of one shape: element i of each output depends on elements i of the inputs, and on inputs
// that the chain does not write.
struct Chain {
  int first, count;
};

// An input of an update that follows chains: its elements are those of the chain from `start` on. chain: the number of the chain in
// its group; -1 for memory that the group does not write.
struct Follows {
  int chain;
  int64_t start;
};

// A group is a run of steps that execute together: a single launch, or chains that do not depend on one another, which share one
// pass over blocks of elements. An update that reads what the chains compute may be the last step of their group.
struct Group {
  int first, count;
  std::vector<Chain> chains;     // empty for a single launch
  std::vector<Follows> follows;  // for each input of the update; empty without one
};

// The address of a given block in a run of several passes. It advances by `stride` bytes from pass to pass.
struct StridedAddress {
  char* data;
  int64_t stride;
};

// How far the recorded list may be rewritten. none: not at all. drop_dead: drop launches whose results are unused. exact: also fuse
// launches, keeping every rounding. fast: also reorder roundings.
enum class Fusion { none, drop_dead, exact, fast };

struct Plan {
  std::vector<Step> steps;
  std::vector<Operand> operands;
  std::vector<double> numbers;  // the values of the operands that are passed by value
  std::vector<Block> blocks;
  std::vector<Group> groups;
  std::vector<int> given;                        // the blocks whose memory the caller provides: inputs, then results
  std::vector<std::vector<size_t>> operands_of;  // for each block, the indices of its operands
  std::vector<View> views;                       // the views of all operands, which the launches point to
  int64_t arena_bytes = 0, local_count = 0;
  int recorded = 0, dead = 0;  // the number of launches recorded, and of those whose results are unused

  // Adds a launch; location_of(view) returns the location of an operand.
  template <class LocationOf> void add(const Launch& launch, const Attribution& attribution, LocationOf&& location_of);
  // Completes the plan after the last launch: rewrites and groups the launches, and places the blocks of the arena at multiples of
  // `align` bytes.
  void finish(Fusion fusion, int64_t align);
  // move() points the operands of a block to its memory. move_given() does so for all given blocks, in pass number `pass`.
  void move(int block, char* data);
  void move_given(const StridedAddress* where, int64_t pass);

  const Operand& operand(const Step& step, int k) const { return operands[step.operand + k]; }
  const Operand& out(const Step& step, int k = 0) const { return operand(step, k); }
  const Operand& in(const Step& step, int k = 0) const { return operand(step, step.launch.outputs + k); }

 private:
  void drop_dead();
  void make_groups(bool share);
  void find_lifetimes();
  void keep_locals();
  void lay_out(int64_t align);
  void make_views();
};

template <class LocationOf> void Plan::add(const Launch& launch, const Attribution& attribution, LocationOf&& location_of) {
  steps.push_back({launch, operands.size(), attribution, recorded++, {launch.kernel->name}});
  for (int k = 0; k < launch.outputs + launch.inputs; ++k) {
    const View& v = launch.operands[k];
    OperandLocation location{-1, 0};
    if (v.number) {
      double carrier = 0;
      for (int b = 0; b < item_size(v.dtype); ++b) reinterpret_cast<char*>(&carrier)[b] = v.data[b];
      location.offset = int64_t(numbers.size());
      numbers.push_back(carrier);
    } else if (v.data) {
      location = location_of(v);
    }
    operands.push_back({v, location});
  }
}

// How far a run got, so that an exception can be attributed to a step: complete passes over the plan, and steps begun in the
// unfinished pass.
struct Progress {
  int passes = 0, begun = 0;
  int64_t* nanoseconds = nullptr;  // the total time of each group; null if groups are not timed
};

// The form in which a program runs its plan, for reports.
struct ProgramState {
  int graphs = 0;                   // the number of CUDA graphs that are kept
  int nodes = 0, kernel_nodes = 0;  // the number of nodes in the most recently made graph
  std::string why_single;           // why kernels are launched one by one on a GPU; empty if they are not
};

// A plan that a backend has prepared to run on its device. The plan must outlive the program.
class Program {
 public:
  virtual ~Program() = default;
  virtual void run(const StridedAddress* given, int64_t passes, Progress& progress) = 0;
  virtual ProgramState state() const { return {}; }
  bool gave_up = false;  // the GPU's driver could not make a graph of the plan
};

// ---- Each backend defines the following.

// The alignment of blocks in the arena, in bytes.
extern const int64_t kArenaAlign;
std::unique_ptr<Program> compile(Plan& plan);
// Replaces launches by one launch if a kernel does the work of both (see families/fusions.h).
void fuse_launches(Plan& plan, Fusion fusion);
// True if the backend can compute the step's output block by block, each element from elements at the same place.
bool is_elementwise(const Plan& plan, const Step& step);
// Returns null if `step`, which is elementwise, and then `next`, which is elementwise or an update, can share a pass over blocks of
// elements as far as the backend's kernels are concerned. Otherwise returns the reason why not.
const char* why_not_together(const Plan& plan, const Step& step, const Step& next);
// Returns the number of the input together with whose elements an update touches those of operand k; -1 for a table.
int goes_with(const Launch& update, int k);

// Replays the plan launch by launch. Each is performed by `launch`: run(), which records it in the ledger, or perform(), which does
// not.
void replay_singly(Plan& plan, const StridedAddress* given, int64_t passes, Progress& progress, void (*launch)(const Launch&));

}  // namespace pb
