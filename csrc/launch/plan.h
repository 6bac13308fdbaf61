// A recorded list of launches, to replay: which memory each touches, what of it is needed, and where temporaries lie.
#pragma once
#include <memory>
#include <vector>

#include "launch/door.h"

namespace pb {

// Where the memory of a block is.
enum class Home : uint8_t {
  outside,  // stays where it is: parameters, slots, constants
  input,    // what the caller gives at each replay
  result,   // new at each replay, for the caller to keep
  arena,    // temporaries, side by side in one piece of memory, that take each other's place
  local,    // of one fused group: never in memory as a whole
};

// Memory that was one piece when it was recorded.
struct Block {
  Home home;
  int64_t bytes;
  int64_t offset = 0;         // in the arena; of a local, its number
  int first = -1, last = -1;  // groups that touch it
};

// An operand that the plan moves: the block it lies in, and how far in.
struct Place {
  int block;  // -1 for what stays where it is
  int64_t offset;
};

// A launch with the state of the door when it was recorded.
struct Step {
  Launch launch;  // its operands are the plan's, from `operand` on
  size_t operand;
  Charge charge;
  int number;                       // of the launch as it was recorded
  const char* why_alone = nullptr;  // why it was not fused with the step before it
};

// Steps that run as one: a single launch, or a chain of elementwise ones.
struct Group {
  int first, count;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<View> operands;
  std::vector<Place> places;    // of each operand
  std::vector<double> numbers;  // that operands by value point at
  std::vector<Block> blocks;
  std::vector<Group> groups;
  int64_t arena_bytes = 0, local_count = 0;
  int recorded = 0, dead = 0;  // launches that there were, and those whose results nobody needs

  // Adds a launch; place(view) tells where an operand lies.
  template <class PlaceOf> void add(const Launch& launch, const Charge& charge, PlaceOf&& place_of);
  // After the last launch: lays out the arena, with blocks at multiples of `align`. To `fuse` is to form groups, and to leave out
  // what nobody needs.
  void finish(bool fuse, int64_t align);
  // Points the operands that lie in a block at its memory.
  void move(int block, char* data);
  // Where the operands of each block are, for move.
  std::vector<std::vector<size_t>> operands_of;

 private:
  void point_at_numbers();
  void drop_dead();
  void make_groups(bool fuse);
  void find_lifetimes();
  void keep_locals();
  void lay_out(int64_t align);
};

template <class PlaceOf> void Plan::add(const Launch& launch, const Charge& charge, PlaceOf&& place_of) {
  Step step{launch, operands.size(), charge, recorded};
  for (int k = 0; k < launch.outputs + launch.inputs; ++k) {
    View v = launch.operands[k];
    Place place{-1, 0};
    if (v.number) {
      double carrier = 0;
      for (int b = 0; b < item_size(v.dtype); ++b) reinterpret_cast<char*>(&carrier)[b] = v.data[b];
      place.offset = int64_t(numbers.size());  // until all are there: then data
      numbers.push_back(carrier);
    } else if (v.data) {
      place = place_of(v);
    }
    operands.push_back(v);
    places.push_back(place);
  }
  steps.push_back(step);
  ++recorded;
}

// A plan made ready to run, by the backend that its memory is of. The plan lives longer.
class Program {
 public:
  virtual ~Program() = default;
  // Runs all groups in order; `done` counts the steps that were begun, for who is told of an exception.
  virtual void run(int& done) = 0;
};

// ---- each backend brings:

// Whether a program sees where Plan::move has put its blocks; otherwise they must stay where they are when it is compiled.
extern const bool kFollowsMoves;
// The multiple that blocks of the arena begin at.
extern const int64_t kArenaAlign;
std::unique_ptr<Program> compile(const Plan& plan);
// Whether both can run in one pass over blocks of elements, `next` after `step`: null, or why not.
const char* why_not_chained(const Launch& step, const Launch& next);

// Launch by launch, where a ledger is told of each: locals need memory, too.
void replay_singly(const Plan& plan, int& done);

}  // namespace pb
