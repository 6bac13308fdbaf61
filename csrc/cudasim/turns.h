// Schedules a cooperative grid: every block has an OS thread, and at most `at_once` of these run at any time.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "cudasim/schedule.h"

namespace cudasim {

class Turns {
 public:
  Turns(unsigned blocks, unsigned at_once, uint64_t seed);

  void begin(unsigned block);    // waits for the block's first turn
  void barrier(unsigned block);  // waits for all blocks, then for the block's turn; fails if another has ended
  void give_way(unsigned block);
  void end(unsigned block);

 private:
  enum class State { kReady, kRuns, kWaits, kEnded };
  using Lock = std::unique_lock<std::mutex>;

  void pass_on();  // gives the free turns to ready blocks
  void wait_for_turn(Lock& lock, unsigned block);
  unsigned count(State state) const;

  std::mutex mutex_;
  std::vector<State> state_;
  std::unique_ptr<std::condition_variable[]> turn_;
  unsigned at_once_, arrived_ = 0, begun_ = 0, last_ = 0;
  bool random_;
  Random random_numbers_;
};

}  // namespace cudasim
