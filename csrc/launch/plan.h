// A recorded list of launches, to replay: which memory each touches, what of it is needed, and where temporaries lie.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "launch/door.h"

namespace pb {

// Where the memory of a block is. What stays where it is (parameters, slots, constants) is no block.
enum class Home : uint8_t {
  input,   // what the caller gives at each replay
  result,  // new at each replay, for the caller to keep
  arena,   // temporaries, side by side in one piece of memory, that take each other's place
  local,   // of one chain: never in memory as a whole
};

// Memory that was one piece when it was recorded.
struct Block {
  Home home;
  int64_t bytes;
  int64_t offset = 0;         // in the arena; of a local, its number
  int first = -1, last = -1;  // groups that touch it
};

// Where an operand lies: the block, and how far in.
struct Place {
  int block;       // -1 for what stays where it is
  int64_t offset;  // of a number by value, which has no block: where it is among the plan's numbers
};

// An operand as the plan knows it.
struct Operand {
  View view;
  Place place;
};

// A launch with the state of the door when it was recorded.
struct Step {
  Launch launch;
  size_t operand;  // the first of its operands in the plan
  Charge charge;
  int number;                       // of the launch as it was recorded
  std::vector<const char*> names;   // of the recorded launches that it does
  const char* why_alone = nullptr;  // why it is not in one group with the step before it
};

// Steps that run as one: a single launch, or a chain of elementwise ones.
struct Group {
  int first, count;
};

// Where a given block is in a run of several steps: `stride` bytes further with each.
struct Span {
  char* data;
  int64_t stride;
};

// How much is made of the list: it stays as it is; what nobody needs is left out; launches become fewer, with every rounding; and
// with roundings in another order.
enum class Fusion { none, needed, exact, fast };

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
  int recorded = 0, dead = 0;  // launches that there were, and those whose results nobody needs

  // Adds a launch; place_of(view) tells where an operand lies.
  template <class PlaceOf> void add(const Launch& launch, const Charge& charge, PlaceOf&& place_of);
  // After the last launch: fuses, and lays out the arena with blocks at multiples of `align`.
  void finish(Fusion fusion, int64_t align);
  // Points the operands that lie in a block at its memory; those of all given blocks, in pass number `pass`.
  void move(int block, char* data);
  void move_given(const Span* where, int64_t pass);

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

template <class PlaceOf> void Plan::add(const Launch& launch, const Charge& charge, PlaceOf&& place_of) {
  steps.push_back({launch, operands.size(), charge, recorded++, {launch.kernel->name}});
  for (int k = 0; k < launch.outputs + launch.inputs; ++k) {
    const View& v = launch.operands[k];
    Place place{-1, 0};
    if (v.number) {
      double carrier = 0;
      for (int b = 0; b < item_size(v.dtype); ++b) reinterpret_cast<char*>(&carrier)[b] = v.data[b];
      place.offset = int64_t(numbers.size());
      numbers.push_back(carrier);
    } else if (v.data) {
      place = place_of(v);
    }
    operands.push_back({v, place});
  }
}

// How far a run has come, for who is told of an exception: passes over the whole plan, and steps begun in the last.
struct Progress {
  int passes = 0, begun = 0;
  int64_t* nanoseconds = nullptr;  // where each group's time is added up, if it is asked for
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
  virtual void run(const Span* given, int64_t passes, Progress& progress) = 0;
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
void replay_singly(Plan& plan, const Span* given, int64_t passes, Progress& progress, void (*launch)(const Launch&));

}  // namespace pb
