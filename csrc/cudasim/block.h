// The threads of one block. Each is ready to run, waits at a barrier, or waits for other lanes of its warp.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "cudasim/async_copy.h"
#include "cudasim/fiber.h"
#include "cudasim/language.h"
#include "cudasim/schedule.h"

namespace cudasim {

// Prints the message and, in device code, the running kernel, block and thread. Then aborts the program.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// A kernel with its arguments.
struct Call {
  void (*run)(void* arguments) = nullptr;
  void* arguments = nullptr;
  const void* kernel = nullptr;  // its address, for messages
};

// The number of threads that have arrived at a barrier, and of those that passed a nonzero predicate.
struct Votes {
  unsigned nonzero = 0, threads = 0;
};

// The operations that lanes of a warp perform together. All lanes of a meeting must perform the same one.
enum class Collective : uint8_t { kSync, kShuffle, kVote, kMatrix };

constexpr size_t kLaneBytes = 64;  // the largest value that a lane can exchange

// A meeting of the lanes in `mask`, with the value that each of them brought. `readers` of them still have to read the values.
struct Meeting {
  uint32_t mask, arrived;
  unsigned readers;
  Collective kind;
  uint8_t bytes;
  alignas(16) unsigned char values[kWarp * kLaneBytes];
};

// The values of a meeting. The value of a lane that has not arrived is all one bits: NaN, or -1.
template <class T> class Peers {
 public:
  explicit Peers(const Meeting& meeting) : meeting_(meeting) {}
  uint32_t mask() const { return meeting_.mask; }
  uint32_t lanes() const { return meeting_.arrived; }
  bool has(unsigned lane) const { return (meeting_.arrived >> lane) & 1; }
  T operator[](unsigned lane) const {
    T value;
    if (has(lane)) {
      std::memcpy(&value, meeting_.values + lane * sizeof(T), sizeof(T));
    } else {
      std::memset(static_cast<void*>(&value), 0xff, sizeof(T));
    }
    return value;
  }

 private:
  const Meeting& meeting_;
};

// Runs blocks, one after another. Every OS thread has its own Block.
class Block {
 public:
  static Block& running() { return *current; }
  static bool runs() { return current != nullptr; }

  Block() : fibers_(&Block::run_threads) {}
  // Runs a block of blockDim threads until all of them have ended.
  void run(const Call& call, uint3 index, const Schedule& schedule, bool strict);

  // ---- for device code: these functions apply to the calling thread
  unsigned thread() const { return thread_; }  // the thread's number in the block
  unsigned lane() const { return thread_ % kWarp; }
  unsigned size() const { return size_; }
  const Call& call() const { return call_; }
  // The number of barriers of all blocks so far, each block's beginning included, and of meetings of the thread's warp.
  uint64_t barriers() const { return barriers_; }
  uint64_t meetings() const { return warps_[thread_ / kWarp].meetings; }

  Votes barrier(bool vote, Site site) {
    const unsigned phase = phase_;
    begin_barrier(site);
    votes_[phase].nonzero += vote;
    if (++votes_[phase].threads == live_) {
      release_barrier();
    } else {
      warps_[thread_ / kWarp].at_barrier |= 1u << lane();
      suspend();
    }
    return votes_[phase];
  }

  // Offers `value` to the other lanes of `mask`, waits until all have arrived, and returns read(Peers<T>).
  template <class T, class Read> auto meet(Collective kind, uint32_t mask, const T& value, Site site, Read read) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kLaneBytes, "lanes exchange plain data of up to 64 bytes");
    Meeting& meeting = join(kind, mask, sizeof(T), site);
    std::memcpy(meeting.values + lane() * sizeof(T), &value, sizeof(T));
    arrive(meeting);
    const auto result = read(Peers<T>(meeting));
    if (--meeting.readers == 0) idle_meetings_.push_back(&meeting);
    return result;
  }

  void yield();         // lets another thread run if one is ready
  void maybe_yield() {  // called at every atomic: yields if the schedule preempts, and in any case at every kSpin-th call
    if (schedule_.preempts() || ++atomics_ == kSpin) yield();
  }

 private:
  struct Warp {
    uint32_t live, at_barrier, meeting;  // masks of lanes; `meeting` has the lowest lane of each meeting that is not complete
    Meeting* open[kWarp];                // these meetings, indexed by their lowest lane
    uint64_t meetings;                   // the number of those that are complete
  };
  static constexpr unsigned kSpin = 4096;  // atomics in a row after which a thread probably spins

  static void run_threads();  // the entry function of every fiber
  void run_one_fiber(Fiber* fiber);
  void lay_out();  // computes the threadIdx of every thread for the shape in blockDim
  void begin_barrier(Site site);
  void release_barrier();
  Meeting& join(Collective kind, uint32_t mask, size_t bytes, Site site);
  void arrive(Meeting& meeting) {
    Warp& warp = warps_[thread_ / kWarp];
    meeting.arrived |= 1u << lane();
    if (!complete(warp, meeting, 1u << lane())) suspend();
  }
  // Completes a meeting if all its live lanes have arrived: makes them ready, except `self`, which runs already. False if not.
  bool complete(Warp& warp, Meeting& meeting, uint32_t self) {
    if (meeting.mask & warp.live & ~meeting.arrived) return false;
    meeting.readers = unsigned(__builtin_popcount(meeting.arrived));
    warp.meeting &= ~(1u << __builtin_ctz(meeting.mask));
    ++warp.meetings;
    ready_.add(unsigned(&warp - warps_), meeting.arrived & ~self);
    return true;
  }
  void end_thread() {
    if (pending_copies) finish_copies(thread_);
    Warp& warp = warps_[thread_ / kWarp];
    warp.live &= ~(1u << lane());
    --live_;
    if (warp.meeting || votes_[phase_].threads) release_waiters(warp);
  }
  void release_waiters(Warp& warp);
  void suspend();  // runs other threads until this one is ready again and selected
  unsigned take_next() {
    if (!ready_.warps) fail_deadlock();
    const unsigned thread = schedule_.next(ready_, thread_);
    ready_.remove(thread);
    return thread;
  }
  void select(unsigned thread) {
    thread_ = thread;
    threadIdx = index_[thread];
  }
  [[noreturn]] void fail_deadlock();
  [[noreturn]] void fail_exit();

  static inline thread_local Block* current = nullptr;

  Call call_;
  Schedule schedule_;
  bool strict_ = true;
  unsigned thread_ = 0, size_ = 0, live_ = 0, phase_ = 0, atomics_ = 0;
  uint64_t barriers_ = 0;
  dim3 shape_{0, 0, 0};
  Ready ready_;
  Votes votes_[2];
  Site barrier_site_;
  Warp warps_[kMaxWarps];
  uint3 index_[kMaxThreads];
  Fiber* fiber_[kMaxThreads];  // null for a thread that has not begun
  Fiber root_;                 // the OS thread's own stack
  FiberPool fibers_;
  std::vector<Meeting*> idle_meetings_;
  std::vector<std::unique_ptr<Meeting>> meetings_;
};

}  // namespace cudasim
