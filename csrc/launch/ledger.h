// A ledger records launches with their FLOPs and bytes. It keeps sums over all launches, and the most recent launches one by one.
#pragma once
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "launch/dtype.h"
#include "math/counts.h"

namespace pb {

// The cost of one launch. The base class holds the algorithmic work, by the textbook's formula; `executed` holds the work that the
// kernel really does. matmul_flops are the FLOPs of matrix products, integer_ops the arithmetic operations on integers.
struct Cost : Counts {
  Counts executed;
  int64_t matmul_flops = 0, integer_ops = 0, bytes_read = 0, bytes_written = 0;
  bool on_floats = false;  // true if the arithmetic is on floats even if no operand has a floating dtype

  void add(const Cost& other, int64_t times);
  using Counts::add;
};

// The arithmetic of a launch is the number of a dtype, or this number for float32 rounded to TF32 by tensor cores.
constexpr int kTf32 = kDTypes;

// The number of phases, the phase of launches that belong to no other, and the number that ends the last phase of a ledger. The
// layer above defines the phases.
constexpr int kPhases = 7, kOther = 5, kEnd = -1;

// Launches with equal keys are summed up. scope: a number that the layer above defines.
struct LedgerKey {
  const char* kernel;
  int phase, scope, arithmetic;

  bool operator==(const LedgerKey& other) const {
    return kernel == other.kernel && phase == other.phase && scope == other.scope && arithmetic == other.arithmetic;
  }
};

struct Record {
  LedgerKey key;
  Cost cost;
  int64_t live_bytes;  // bytes held by arrays of the device when the kernel was launched
  int64_t begin, end;  // marks of the door, later times; 0 if launches are not timed
};

struct LedgerSum {
  LedgerKey key;
  Cost cost;
  int64_t launches, nanoseconds;
};

// A change of phase: launches after `mark` belong to `phase`.
struct PhaseChange {
  int64_t mark;
  int phase;
};

// The ledger entry of a launch of a plan, which is counted once per replay.
struct PlanRecord {
  LedgerKey key;
  Cost cost;
};

// The number of ledgers of all threads, and the number of launches by threads that have no ledger while another thread has one.
extern std::atomic<int> ledgers;
extern std::atomic<int64_t> launches_without_ledger;

class Ledger {
 public:
  static constexpr size_t kKept = 1 << 14;  // at least this many of the latest launches and phase changes are kept one by one

  // phases: record when each phase begins. timed: time every launch. singly: replay plans launch by launch. dry: count launches
  // without performing them.
  Ledger(bool phases, bool timed, bool singly, bool dry) : has_phases(phases), timed(timed), singly(singly), dry(dry) {
    ledgers.fetch_add(1, std::memory_order_relaxed);
  }
  ~Ledger() { ledgers.fetch_sub(1, std::memory_order_relaxed); }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  const bool has_phases, timed, singly, dry;

  void add(const Record& record);
  void enter(int phase);
  void launched(int64_t nanoseconds) { launching_ += nanoseconds; }
  // Moves launches to scope `to` if they have this phase and scope `from` and were added since the previous call.
  void label(int phase, int from, int to);
  // Adds `times` replays of a plan. nanoseconds[i] is the total time of launch i over these replays; null if they were not timed.
  void replayed(const std::shared_ptr<const std::vector<PlanRecord>>& plan, int64_t times, const int64_t* nanoseconds);

  // The content of the ledger. take() is called once, after the last launch; it replaces the kept marks by times.
  struct Taken {
    int64_t phases[kPhases];      // the nanoseconds of each phase before the first kept phase change
    std::vector<LedgerSum> sums;  // in the order of the first launch of each
    std::vector<Record> records;  // the most recent launches
    std::vector<PhaseChange> phase_changes;
    int64_t launching;  // nanoseconds that the host spent in launches, if they are timed
  };
  Taken take();

 private:
  struct Hash {
    size_t operator()(const LedgerKey& key) const;
  };
  struct Replays {
    std::shared_ptr<const std::vector<PlanRecord>> plan;
    int64_t times = 0;
    std::vector<int64_t> nanoseconds;
  };

  LedgerSum& sum_of(const LedgerKey& key);
  void fold_records(size_t count);
  void fold_phase_changes(size_t count);

  std::vector<Record> records_;
  std::vector<PhaseChange> changes_;
  std::vector<Replays> replays_;
  std::vector<LedgerSum> sums_;
  std::unordered_map<LedgerKey, size_t, Hash> places_;
  size_t labelled_ = 0;
  int64_t launching_ = 0;
  PhaseChange folded_{0, 0};      // the newest change already folded into phases_ and dropped from changes_
  int64_t phases_[kPhases] = {};  // the nanoseconds of each phase before folded_
};

}  // namespace pb
