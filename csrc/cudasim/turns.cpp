// Implements turns: the next turn goes to the next ready block or, with a seed, to a random one.
#include "cudasim/turns.h"

#include <algorithm>

#include "cudasim/block.h"

namespace cudasim {

Turns::Turns(unsigned blocks, unsigned at_once, uint64_t seed)
    : state_(blocks, State::kReady),
      turn_(std::make_unique<std::condition_variable[]>(blocks)),
      at_once_(at_once),
      last_(blocks - 1),
      random_(seed != 0),
      random_numbers_(seed) {}

unsigned Turns::count(State state) const { return unsigned(std::count(state_.begin(), state_.end(), state)); }

void Turns::pass_on() {
  const unsigned blocks = unsigned(state_.size());
  if (begun_ < blocks) return;  // the first turn must not depend on which OS thread arrives first
  while (count(State::kRuns) < at_once_ && count(State::kReady) > 0) {
    unsigned next = random_ ? random_numbers_.below(blocks) : (last_ + 1) % blocks;
    while (state_[next] != State::kReady) next = (next + 1) % blocks;
    state_[next] = State::kRuns;
    last_ = next;
    turn_[next].notify_one();
  }
}

void Turns::wait_for_turn(Lock& lock, unsigned block) {
  turn_[block].wait(lock, [&] { return state_[block] == State::kRuns; });
}

void Turns::begin(unsigned block) {
  Lock lock(mutex_);
  ++begun_;
  pass_on();
  wait_for_turn(lock, block);
}

void Turns::barrier(unsigned block) {
  Lock lock(mutex_);
  if (count(State::kEnded) > 0) fail("divergent grid barrier: another block of the grid has ended");
  state_[block] = State::kWaits;
  if (++arrived_ == state_.size()) {
    arrived_ = 0;
    std::fill(state_.begin(), state_.end(), State::kReady);
  }
  pass_on();
  wait_for_turn(lock, block);
}

void Turns::give_way(unsigned block) {
  Lock lock(mutex_);
  if (count(State::kReady) == 0) return;
  state_[block] = State::kReady;
  last_ = block;
  pass_on();
  wait_for_turn(lock, block);
}

void Turns::end(unsigned block) {
  Lock lock(mutex_);
  if (arrived_ > 0) fail("divergent grid barrier: block %u of the grid ends while %u others wait", block, arrived_);
  state_[block] = State::kEnded;
  pass_on();
}

}  // namespace cudasim
