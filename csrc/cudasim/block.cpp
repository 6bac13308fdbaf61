// Starts, suspends, resumes and ends the threads of a block.
#include "cudasim/block.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cudasim/symbols.h"

namespace cudasim {

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char message[1024];
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "cudasim: %s", message);
  if (Block::runs()) {
    const std::string kernel = name_of(Block::running().call().kernel);
    std::fprintf(stderr, ": %s, block (%u, %u, %u), thread (%u, %u, %u)", kernel.c_str(), blockIdx.x, blockIdx.y, blockIdx.z,
                 threadIdx.x, threadIdx.y, threadIdx.z);
  }
  std::fputc('\n', stderr);
  std::fflush(nullptr);
  std::abort();
}

// ---- threads

void Block::lay_out() {
  shape_ = blockDim;
  size_ = shape_.x * shape_.y * shape_.z;
  unsigned thread = 0;
  for (unsigned z = 0; z < shape_.z; ++z) {
    for (unsigned y = 0; y < shape_.y; ++y) {
      for (unsigned x = 0; x < shape_.x; ++x) index_[thread++] = {x, y, z};
    }
  }
}

void Block::run(const Call& call, uint3 index, const Schedule& schedule, bool strict) {
  current = this;
  call_ = call;
  schedule_ = schedule;
  strict_ = strict;
  blockIdx = index;
  if (shape_.x != blockDim.x || shape_.y != blockDim.y || shape_.z != blockDim.z) lay_out();
  live_ = size_;
  phase_ = atomics_ = 0;
  ++barriers_;
  votes_[0] = votes_[1] = Votes{};
  for (unsigned first = 0; first < size_; first += kWarp) {
    Warp& warp = warps_[first / kWarp];
    warp.live = size_ - first >= kWarp ? ~0u : (1u << (size_ - first)) - 1;
    warp.at_barrier = warp.meeting = 0;
    warp.meetings = 0;
    ready_.add(first / kWarp, warp.live);
  }
  std::fill_n(fiber_, size_, nullptr);
  thread_ = 0;
  select(take_next());
  fiber_[thread_] = fibers_.take();
  root_.switch_to(*fiber_[thread_]);
  current = nullptr;
}

void Block::run_threads() {
  Fiber::arrived();
  Block& block = running();
  for (Fiber* self = block.fiber_[block.thread_];;) block.run_one_fiber(self);
}

// Runs the selected thread to its end, and then each next thread on the same fiber as long as that thread has not begun, because
// this needs no switch. Otherwise gives the fiber back to the pool and switches away; returns when the fiber is used again.
void Block::run_one_fiber(Fiber* self) {
  for (;;) {
    call_.run(call_.arguments);
    end_thread();
    if (live_ == 0) {
      fibers_.give(self);
      return self->switch_to(root_);
    }
    select(take_next());
    if (fiber_[thread_]) {
      fibers_.give(self);
      return self->switch_to(*fiber_[thread_]);
    }
    fiber_[thread_] = self;
  }
}

// Called when a thread has ended, because other threads may have been waiting for that thread alone.
void Block::release_waiters(Warp& warp) {
  for (uint32_t open = warp.meeting; open; open &= open - 1) complete(warp, *warp.open[__builtin_ctz(open)], 0);
  if (const unsigned waiting = votes_[phase_].threads) {
    if (strict_) fail_exit();
    if (waiting == live_) release_barrier();
  }
}

void Block::suspend() {
  Fiber* self = fiber_[thread_];
  select(take_next());
  Fiber*& next = fiber_[thread_];
  if (!next) next = fibers_.take();
  self->switch_to(*next);
}

void Block::yield() {
  atomics_ = 0;
  if (!ready_.warps) return;
  Fiber* self = fiber_[thread_];
  ready_.add(thread_ / kWarp, 1u << lane());
  const unsigned thread = schedule_.next_after_yield(ready_, thread_);
  ready_.remove(thread);
  if (thread == thread_) return;
  select(thread);
  Fiber*& next = fiber_[thread_];
  if (!next) next = fibers_.take();
  self->switch_to(*next);
}

// ---- barriers

void Block::begin_barrier(Site site) {
  if (strict_ && live_ != size_)
    fail("divergent barrier: this thread is at %s:%d after another of the block has exited", site.file, site.line);
  if (votes_[phase_].threads == 0) {
    barrier_site_ = site;
  } else if (strict_ && site != barrier_site_) {
    fail("divergent barrier: this thread is at %s:%d while others wait at %s:%d", site.file, site.line, barrier_site_.file,
         barrier_site_.line);
  }
}

// The next barrier reuses the votes of the previous one, which no thread reads any more, because all have arrived at this barrier.
void Block::release_barrier() {
  phase_ ^= 1;
  ++barriers_;
  votes_[phase_] = Votes{};
  for (unsigned warp = 0; warp * kWarp < size_; ++warp) {
    ready_.add(warp, warps_[warp].at_barrier);
    warps_[warp].at_barrier = 0;
  }
  schedule_.after_barrier();
}

// ---- warps

Meeting& Block::join(Collective kind, uint32_t mask, size_t bytes, Site site) {
  Warp& warp = warps_[thread_ / kWarp];
  if (!((mask >> lane()) & 1)) fail("the mask 0x%08x at %s:%d lacks the calling lane %u", mask, site.file, site.line, lane());
  const unsigned lowest = unsigned(__builtin_ctz(mask));
  if (!((warp.meeting >> lowest) & 1)) {
    if (idle_meetings_.empty()) {
      meetings_.push_back(std::make_unique<Meeting>());
      idle_meetings_.push_back(meetings_.back().get());
    }
    Meeting* meeting = idle_meetings_.back();
    idle_meetings_.pop_back();
    meeting->mask = mask;
    meeting->arrived = 0;
    meeting->kind = kind;
    meeting->bytes = uint8_t(bytes);
    warp.open[lowest] = meeting;
    warp.meeting |= 1u << lowest;
    return *meeting;
  }
  Meeting& meeting = *warp.open[lowest];
  if (meeting.mask != mask)
    fail("mask 0x%08x at %s:%d, but a lane waits with 0x%08x", mask, site.file, site.line, meeting.mask);
  if (meeting.kind != kind || meeting.bytes != bytes) {
    fail("divergent warp: this lane's call at %s:%d is another than that where lanes of mask 0x%08x wait", site.file, site.line,
         mask);
  }
  return meeting;
}

// ---- what stops the program

void Block::fail_exit() {
  for (unsigned thread = 0; thread < size_; ++thread) {
    if (!((warps_[thread / kWarp].at_barrier >> thread % kWarp) & 1)) continue;
    const uint3 at = index_[thread];
    fail("divergent barrier: this thread exits while thread (%u, %u, %u) waits at %s:%d", at.x, at.y, at.z, barrier_site_.file,
         barrier_site_.line);
  }
  fail("divergent barrier: this thread exits while others wait at %s:%d", barrier_site_.file, barrier_site_.line);
}

void Block::fail_deadlock() {
  std::string waits;
  if (votes_[phase_].threads) {
    waits = std::to_string(votes_[phase_].threads) + " of " + std::to_string(live_) + " threads wait at the barrier " +
            barrier_site_.file + ":" + std::to_string(barrier_site_.line);
  }
  for (unsigned warp = 0; warp * kWarp < size_; ++warp) {
    for (uint32_t open = warps_[warp].meeting; open; open &= open - 1) {
      const Meeting& meeting = *warps_[warp].open[__builtin_ctz(open)];
      char text[96];
      std::snprintf(text, sizeof text, "%swarp %u has mask 0x%08x, but lanes 0x%08x do not come", waits.empty() ? "" : "; ",
                    warp, meeting.mask, meeting.mask & warps_[warp].live & ~meeting.arrived);
      if (waits.size() < 500) waits += text;
    }
  }
  fail("deadlock: %s", waits.c_str());
}

}  // namespace cudasim
