// A recorded list of launches, to replay: which memory each touches, what of it is needed, and where temporaries lie.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "launch/door.h"

namespace pb {

// The kinds of blocks. Memory whose address does not change between replays (parameters, optimizer slots, constants) does not belong
// to any block.
enum class BlockKind : uint8_t {
  input,   // memory that the caller passes to each replay
  result,  // allocated anew by each replay, for the caller to keep
  arena,   // temporaries in one shared allocation, which reuse one another's memory
  local,   // temporaries of one chain, which never exist in memory as a whole
};

// A block is memory that was one allocation when it was recorded.
struct Block {
  BlockKind kind;
  int64_t bytes;
  int64_t offset = 0;         // in the arena, in bytes; for a local block, its number
  int first = -1, last = -1;  // groups that touch it
};

// The block that holds an operand, and the operand's offset in it.
struct OperandLocation {
  int block;       // -1 for memory that belongs to no block
  int64_t offset;  // in bytes; for a number by value, which has no block, its index in the plan's numbers
};

// An operand of a recorded launch.
struct Operand {
  View view;
  OperandLocation location;
};

// A launch with the state of the door when it was recorded.
struct Step {
  Launch launch;
  size_t operand;  // the first of its operands in the plan
  Attribution attribution;
  int number;                            // of the launch as it was recorded
  std::vector<const char*> names;        // of the recorded launches that it does
  const char* unfused_reason = nullptr;  // why it is not in one group with the step before it
};

// Steps that run as one: a single launch, or a chain of elementwise ones.
struct Group {
  int first, count;
};

// The address of a given block in a run of several passes: it moves on by `stride` bytes with each pass.
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
  std::vector<double> numbers;  // that operands by value point at
  std::vector<Block> blocks;
  std::vector<Group> groups;
  std::vector<int> given;                        // blocks that the caller brings: inputs, then results
  std::vector<std::vector<size_t>> operands_of;  // each block
  std::vector<View> views;                       // of all operands, as the launches see them
  int64_t arena_bytes = 0, local_count = 0;
  int recorded = 0, dead = 0;  // the number of launches recorded, and of those whose results are unused

  // Adds a launch; location_of(view) returns the location of an operand.
  template <class LocationOf> void add(const Launch& launch, const Attribution& attribution, LocationOf&& location_of);
  // After the last launch: fuses, and lays out the arena with blocks at multiples of `align`.
  void finish(Fusion fusion, int64_t align);
  // Points the operands that lie in a block at its memory; those of all given blocks, in pass number `pass`.
  void move(int block, char* data);
  void move_given(const StridedAddress* where, int64_t pass);

  const Operand& operand(const Step& step, int k) const { return operands[step.operand + k]; }
  const Operand& out(const Step& step, int k = 0) const { return operand(step, k); }
  const Operand& in(const Step& step, int k = 0) const { return operand(step, step.launch.outputs + k); }

 private:
  void drop_dead();
  void make_groups(bool chains);
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
  int64_t* nanoseconds = nullptr;  // the sums of each group's time, or null
};

// The form in which a program runs its plan, for reports.
struct ProgramState {
  int graphs = 0;                   // CUDA graphs that are kept
  int nodes = 0, kernel_nodes = 0;  // counted in the graph that was made last
  std::string why_single;           // why kernels are launched one by one on a GPU; empty if they are not
};

// A plan made ready to run, by the backend that its memory is of. The plan lives longer.
class Program {
 public:
  virtual ~Program() = default;
  virtual void run(const StridedAddress* given, int64_t passes, Progress& progress) = 0;
  virtual ProgramState state() const { return {}; }
  bool gave_up = false;  // a GPU's driver did not take the plan as a graph
};

// ---- each backend brings:

// The multiple that blocks of the arena begin at.
extern const int64_t kArenaAlign;
std::unique_ptr<Program> compile(Plan& plan);
// Puts launches together that have a kernel for both (see families/fusions.h).
void fuse_launches(Plan& plan, Fusion fusion);
// Whether both can run in one pass over blocks of elements, `next` after `step`: null, or why not.
const char* why_not_chained(const Plan& plan, const Step& step, const Step& next);

// Replays the plan launch by launch through `launch`: run(), which tells the ledger of each, or perform(), which does not.
void replay_singly(Plan& plan, const StridedAddress* given, int64_t passes, Progress& progress, void (*launch)(const Launch&));

}  // namespace pb
