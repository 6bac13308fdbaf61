// Implements the crew of OS threads, which grows to the largest number of threads that a launch has used.
#include "cudasim/crew.h"

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "cudasim/floating_mode.h"

namespace cudasim {
namespace {

class Crew {
 public:
  void run(unsigned count, const std::function<void(unsigned)>& work) {
    {
      const std::lock_guard lock(mutex_);
      while (threads_.size() + 1 < count) {
        threads_.emplace_back(&Crew::serve, this, unsigned(threads_.size() + 1), generation_);
      }
      work_ = &work;
      mode_ = FloatingMode();
      count_ = count;
      busy_ = count - 1;
      ++generation_;
    }
    start_.notify_all();
    work(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return busy_ == 0; });
  }

 private:
  void serve(unsigned number, unsigned generation) {
    for (;;) {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return generation_ != generation; });
      generation = generation_;
      if (number >= count_) continue;
      const std::function<void(unsigned)>& work = *work_;
      const FloatingMode mode = mode_;
      lock.unlock();
      mode.set();
      work(number);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::vector<std::thread> threads_;
  const std::function<void(unsigned)>* work_ = nullptr;
  FloatingMode mode_;
  unsigned count_ = 0, busy_ = 0, generation_ = 0;
};

// Returns the crew of this process. It is never deleted, because its threads never end. A forked process lacks these threads, so it
// creates a new crew.
Crew& crew() {
  static Crew* crew = nullptr;
  static pid_t owner = 0;
  if (owner != getpid()) {
    crew = new Crew;
    owner = getpid();
  }
  return *crew;
}

}  // namespace

void run_on_crew(unsigned count, const std::function<void(unsigned)>& work) {
  if (count == 1) return work(0);
  crew().run(count, work);
}

}  // namespace cudasim
