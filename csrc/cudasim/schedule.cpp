// Implements random schedules, and reads the environment variables that select them.
#include "cudasim/schedule.h"

#include <algorithm>
#include <cstdlib>

namespace cudasim {
namespace {

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

constexpr unsigned kDemotion = 16;   // one choice in 16, on average, demotes the chosen warp to the lowest priority
constexpr unsigned kPreemption = 8;  // one atomic in 8, on average, lets another thread run

}  // namespace

Options Options::from_environment() {
  constexpr uint64_t kMost = 256;
  return {number_of("CUDASIM_SEED", 0), unsigned(std::clamp<uint64_t>(number_of("CUDASIM_THREADS", 1), 1, kMost)),
          number_of("CUDASIM_RELAXED", 0) == 0};
}

Schedule::Schedule(uint64_t seed, uint64_t launch, unsigned block) : random_(seed != 0) {
  if (!random_) return;
  random_numbers_ = Random(Random(Random(seed).next() + launch).next() + block);
  lanes_ = Lanes(random_numbers_.below(3));
  after_barrier();
}

void Schedule::after_barrier() {
  if (!random_) return;
  for (int64_t& priority : priority_) priority = int64_t(random_numbers_.next() >> 1);
}

unsigned Schedule::next_random(const Ready& ready) {
  unsigned warp = lowest(ready.warps);
  for (uint32_t rest = ready.warps; rest; rest &= rest - 1) {
    if (priority_[lowest(rest)] > priority_[warp]) warp = lowest(rest);
  }
  if (random_numbers_.below(kDemotion) == 0) priority_[warp] = --floor_;
  const uint32_t lanes = ready.lanes[warp];
  unsigned lane = lowest(lanes);
  if (lanes_ == Lanes::kDown) lane = 31u - unsigned(__builtin_clz(lanes));
  if (lanes_ == Lanes::kRandom) {
    lane = first_from(lanes, random_numbers_.below(kWarp));
  }
  return warp * kWarp + lane;
}

unsigned Schedule::next_after_yield(const Ready& ready, unsigned current) {
  const unsigned warp = current / kWarp;
  priority_[warp] = --floor_;
  if (random_) return next_random(ready);
  const unsigned lane = current % kWarp;
  // Prefers the later lanes of this warp, then the other warps, then the lanes of this warp from the first on.
  if (const uint32_t later = lane < 31 ? ready.lanes[warp] >> (lane + 1) << (lane + 1) : 0) return warp * kWarp + lowest(later);
  const unsigned next = first_from(ready.warps, (warp + 1) % kMaxWarps);
  return next * kWarp + lowest(ready.lanes[next]);
}

bool Schedule::preempts() { return random_ && random_numbers_.below(kPreemption) == 0; }

}  // namespace cudasim
