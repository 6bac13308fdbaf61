// Selects the thread of a block that runs next: in order or, with a seed, at random. Also the source of all random choices.
#pragma once

#include <cstdint>

#include "cudasim/language.h"

namespace cudasim {

// Random numbers from a seed, by splitmix64 (Steele, Lea & Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  unsigned below(unsigned n) { return unsigned((next() >> 32) * n >> 32); }

 private:
  uint64_t state_;
};

// The options that environment variables set. They are read at every launch. README.md describes them.
struct Options {
  uint64_t seed;     // CUDASIM_SEED: 0 is the default order
  unsigned threads;  // CUDASIM_THREADS: OS threads that run blocks
  bool strict;       // false with CUDASIM_RELAXED: a use of barriers that CUDA leaves undefined does not stop the program
  static Options from_environment();
};

// The threads that are ready to run, as sets of bits.
struct Ready {
  uint32_t warps = 0, lanes[kMaxWarps] = {};
  void add(unsigned warp, uint32_t mask) {
    lanes[warp] |= mask;
    if (mask) warps |= 1u << warp;
  }
  void remove(unsigned thread) {
    const unsigned warp = thread / kWarp;
    lanes[warp] &= ~(1u << thread % kWarp);
    if (!lanes[warp]) warps &= ~(1u << warp);
  }
};

// The order of one block's threads.
//
// By default a warp runs as far as it can, lane after lane, and then the next warp runs. With a seed, warps have random priorities.
// The ready warp with the highest priority runs as far as it can, and now and then it drops to the lowest priority. This finds
// orders that a fair random choice would not (Burckhardt et al., "A randomized scheduler with probabilistic guarantees", 2010).
class Schedule {
 public:
  Schedule() = default;  // in order
  Schedule(uint64_t seed, uint64_t launch, unsigned block);

  bool random() const { return random_; }
  unsigned next(const Ready& ready, unsigned current) { return random_ ? next_random(ready) : next_in_order(ready, current); }
  unsigned next_after_yield(const Ready& ready, unsigned current);  // prefers other threads to the current one
  void after_barrier();                                             // draws new priorities
  bool preempts();                                                  // true if the thread must yield at this atomic

 private:
  enum class Lanes { kUp, kDown, kRandom };

  static unsigned lowest(uint32_t mask) { return unsigned(__builtin_ctz(mask)); }
  static unsigned next_in_order(const Ready& ready, unsigned current) {
    const unsigned warp = current / kWarp, lane = current % kWarp;
    if (const uint32_t lanes = ready.lanes[warp]) return warp * kWarp + first_from(lanes, lane);
    const unsigned next = first_from(ready.warps, warp);
    return next * kWarp + lowest(ready.lanes[next]);
  }
  // Returns the lowest bit at `from` or above. If there is none, returns the lowest bit.
  static unsigned first_from(uint32_t mask, unsigned from) {
    const uint32_t above = mask >> from << from;
    return lowest(above ? above : mask);
  }
  unsigned next_random(const Ready& ready);

  bool random_ = false;
  Lanes lanes_ = Lanes::kUp;
  Random random_numbers_;
  int64_t floor_ = 0;  // the lowest priority of any warp so far
  int64_t priority_[kMaxWarps] = {};
};

}  // namespace cudasim
