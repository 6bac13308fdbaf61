// The implementation of pool.h. Workers without work spin briefly and then sleep. A thread that has finished its chunks takes over
// chunks of other threads.
#include "cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "cpu/cgroup.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace pb::cpu {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kChunksPerThread = 2;  // a thread that is late or preempted leaves half of its share to other threads
constexpr int64_t kAlign = 64;       // long loops are cut at multiples of this: at whole vectors and cache lines
// The time that an idle worker spins before it sleeps. It is long enough to bridge the Python code between two kernels of a step.
// Waking a sleeping worker costs 30 us.
constexpr auto kSpin = std::chrono::microseconds(150);

void relax() {
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns this thread's rounding mode and denormal mode, without the flags of past exceptions.
uint64_t float_mode() {
#if defined(__SSE2__)
  return _mm_getcsr() & ~0x3Fu;
#elif defined(__aarch64__)
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

void set_float_mode(uint64_t mode) {
#if defined(__SSE2__)
  _mm_setcsr(static_cast<unsigned>(mode));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(mode));
#else
  (void)mode;
#endif
}

// Returns true as soon as ready() does, and false if it does not within kSpin.
template <class Ready>
bool spin_until(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

// Returns the number of CPUs in a control group's quota, or 0 if it has none.
int quota_of(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::max(1, static_cast<int>(std::strtod(quota.c_str(), nullptr) / period + 0.5));
}

int default_thread_count() {
  if (const char* text = std::getenv("PULLBACK_NUM_THREADS")) {
    const long count = std::strtol(text, nullptr, 10);
    if (count >= 1) return static_cast<int>(std::min<long>(count, kMaxThreads));
  }
  return usable_cpus("");
}

struct Job {
  detail::ChunkBody run = nullptr;
  const void* body = nullptr;
  int64_t n = 0;
  Chunks chunks{};
  int shares = 0;  // the chunks are split into this many contiguous runs; a thread that has finished its run helps the next
  uint64_t mode = 0;
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  } share[kMaxThreads];
  std::atomic<bool> failed{false};
  std::exception_ptr error;
};

struct Pool {
  // The state is one word: generation << 32 | open << 31 | number of workers inside. A worker enters by a compare-exchange while
  // the gate is open. The caller closes the gate when no chunk is left to begin. The job is done when no worker is inside any more.
  static constexpr uint64_t kOpen = uint64_t{1} << 31, kInside = kOpen - 1;
  std::atomic<uint64_t> gate{0};
  std::atomic<bool> busy{false};  // set while a thread uses the pool for its job
  Job job;

  std::mutex mutex;
  std::condition_variable wake, left;
  std::atomic<int> sleeping{0};
  std::atomic<bool> waiting{false};
  int workers = 0;  // the number started so far; this and the following may be used only by the thread that set busy
  struct Worker {
    std::thread::native_handle_type thread;
    int kept_off = -1;  // the CPU that it may not run on
  } worker[kMaxThreads];

  void work(int index);
  void start_workers(int wanted);
  void worker_loop(int index);
  void run(int64_t n, Chunks chunks, detail::ChunkBody run, const void* body);
  void wake_workers(int wanted);
  void keep_off_this_cpu();
  void wait_until_left();
};

std::atomic<int> threads{0};
std::atomic<Pool*> pool{nullptr};

// Returns the pool, which is never destroyed, because workers sleep in it until the process ends.
Pool& the_pool() {
  Pool* now = pool.load(std::memory_order_acquire);
  if (now) return *now;
  static std::once_flag once;
  std::call_once(once, [] {
    pool.store(new Pool);
    // A forked child has no workers, and the locks may be in any state, so it starts with a new pool.
    pthread_atfork(nullptr, nullptr, [] { pool.store(new Pool); });
  });
  return *pool.load(std::memory_order_acquire);
}

void Pool::work(int index) {
  for (int turn = 0; turn < job.shares; ++turn) {
    Job::Share& share = job.share[(index + turn) % job.shares];
    for (;;) {
      const int64_t chunk = share.next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= share.end) break;
      if (job.failed.load(std::memory_order_relaxed)) continue;
      const int64_t begin = chunk * job.chunks.size;
      try {
        job.run(job.body, chunk, begin, std::min(job.n, begin + job.chunks.size));
      } catch (...) {
        if (!job.failed.exchange(true)) job.error = std::current_exception();
      }
    }
  }
}

void Pool::worker_loop(int index) {
  uint64_t seen = 0;  // the generation of the last job that this worker took part in
  auto news = [&] {
    const uint64_t now = gate.load();
    return (now & kOpen) && (now >> 32) != seen;
  };
  for (;;) {
    if (!spin_until(news)) {
      std::unique_lock<std::mutex> lock(mutex);
      sleeping.fetch_add(1);  // before news() reads the gate; run() opens the gate, then reads this
      wake.wait(lock, news);
      sleeping.fetch_sub(1);
    }
    uint64_t now = gate.load();
    while ((now & kOpen) && !gate.compare_exchange_weak(now, now + 1)) {}
    if (!(now & kOpen)) continue;
    seen = now >> 32;
    if (static_cast<int>(now & kInside) < job.shares - 1) {  // false if enough are inside since thread_count() was lowered
      set_float_mode(job.mode);
      work(index % job.shares);
    }
    const uint64_t after = gate.fetch_sub(1) - 1;
    if ((after & (kOpen | kInside)) == 0 && waiting.load()) {
      std::lock_guard<std::mutex> lock(mutex);
      left.notify_one();
    }
  }
}

void Pool::start_workers(int wanted) {
  if (workers >= wanted) return;
  sigset_t all, before;  // workers block all signals, so that the application's threads handle them
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (; workers < wanted; ++workers) {
      std::thread thread([this, index = workers + 1] { worker_loop(index); });
      worker[workers] = {thread.native_handle()};
      thread.detach();
    }
  } catch (const std::system_error&) {  // no more threads are available; the existing ones do the work
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Keeps workers off the caller's CPU. A worker woken there cannot start until the caller has done all the work itself, and Linux
// wakes it there if the CPUs report no shared cache, as in many virtual machines (measured on one: it starts after 1.8 ms instead
// of 10 us). Pools of more than 8 workers skip this: one late worker matters little there, and a system call per worker would not.
void Pool::keep_off_this_cpu() {
#if defined(__linux__)
  const int here = sched_getcpu();
  if (workers > 8 || here < 0 || here >= CPU_SETSIZE) return;
  for (int i = 0; i < workers; ++i) {
    if (worker[i].kept_off == here) continue;
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0) return;
    CPU_CLR(here, &mask);
    if (CPU_COUNT(&mask) > 0) pthread_setaffinity_np(worker[i].thread, sizeof mask, &mask);
    worker[i].kept_off = here;
  }
#endif
}

void Pool::wake_workers(int wanted) {
  const int asleep = sleeping.load();
  if (asleep == 0) return;
  keep_off_this_cpu();
  { std::lock_guard<std::mutex> lock(mutex); }  // a worker counted in `asleep` now waits, or has seen the open gate
  if (asleep <= wanted) {
    wake.notify_all();
  } else {
    for (int i = 0; i < wanted; ++i) wake.notify_one();
  }
}

void Pool::wait_until_left() {
  auto empty = [&] { return (gate.load() & kInside) == 0; };
  if (spin_until(empty)) return;
  std::unique_lock<std::mutex> lock(mutex);
  waiting.store(true);
  left.wait(lock, empty);
  waiting.store(false);
}

void Pool::run(int64_t n, Chunks chunks, detail::ChunkBody run, const void* body) {
  const int shares = static_cast<int>(std::min<int64_t>(chunks.count, thread_count()));
  start_workers(shares - 1);
  job.run = run;
  job.body = body;
  job.n = n;
  job.chunks = chunks;
  job.shares = shares;
  job.mode = float_mode();
  job.failed.store(false, std::memory_order_relaxed);
  for (int i = 0; i < shares; ++i) {
    job.share[i].next.store(chunks.count * i / shares, std::memory_order_relaxed);
    job.share[i].end = chunks.count * (i + 1) / shares;
  }
  const uint64_t generation = ((gate.load() >> 32) + 1) & 0xFFFFFFFF;
  gate.store(generation << 32 | kOpen);
  wake_workers(shares - 1);
  work(0);
  gate.fetch_and(~kOpen);
  wait_until_left();
}

}  // namespace

int usable_cpus(const std::string& root) {
  int cpus = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
#if defined(__linux__)
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) cpus = std::max(1, CPU_COUNT(&mask));
  for (const std::string& folder : cgroup_folders(root, "")) {
    if (const int quota = quota_of(folder)) cpus = std::min(cpus, quota);
  }
#endif
  return std::min(cpus, kMaxThreads);
}

int thread_count() {
  int count = threads.load(std::memory_order_relaxed);
  if (count == 0) {
    int none = 0;
    threads.compare_exchange_strong(none, default_thread_count());
    count = threads.load(std::memory_order_relaxed);
  }
  return count;
}

void set_thread_count(int count) { threads.store(std::clamp(count, 1, kMaxThreads), std::memory_order_relaxed); }

Chunks chunks_of(int64_t n, int64_t grain) {
  grain = std::max<int64_t>(grain, 1);
  if (n <= grain) return {1, n};
  const int count = thread_count();
  const int64_t wanted = count == 1 ? 1 : std::min<int64_t>(n / grain, int64_t{count} * kChunksPerThread);
  if (wanted == 1) return {1, n};
  int64_t size = (n + wanted - 1) / wanted;
  if (size >= 8 * kAlign) size = (size + kAlign - 1) / kAlign * kAlign;
  return {(n + size - 1) / size, size};
}

void detail::run_chunks(int64_t n, Chunks chunks, ChunkBody run, const void* body) {
  Pool& p = the_pool();
  if (p.busy.exchange(true, std::memory_order_acquire)) {  // a nested loop, or another thread's job
    for (int64_t c = 0; c < chunks.count; ++c) {
      run(body, c, c * chunks.size, std::min(n, (c + 1) * chunks.size));
    }
    return;
  }
  p.run(n, chunks, run, body);
  std::exception_ptr error;
  std::swap(error, p.job.error);
  p.busy.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

}  // namespace pb::cpu
