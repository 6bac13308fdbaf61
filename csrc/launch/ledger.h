// What was launched, with its FLOPs and bytes: sums for ever, and the last launches one by one.
#pragma once
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "launch/dtype.h"
#include "math/counts.h"

namespace pb {

// Figures of one launch. The Counts is algorithmic, by the textbook's formula; matmul_flops is the part in products; `executed` is
// what the kernel really does. integer_ops is the arithmetic on integers.
struct Cost : Counts {
  Counts executed;
  int64_t matmul_flops = 0, integer_ops = 0, bytes_read = 0, bytes_written = 0;
  bool on_floats = false;  // the arithmetic, although no operand may be of a floating dtype

  void add(const Cost& other, int64_t times);
  using Counts::add;
};

// What a launch computes in: a dtype, or float32 rounded to TF32 by tensor cores.
constexpr int kTf32 = kDTypes;

constexpr int kPhases = 6, kOther = 5, kEnd = -1;  // numbers of the layer above, but for the end of the last one

// What launches have in common that are summed up. scope: a number of the layer above.
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
  int64_t live_bytes;  // of the device, when it was launched
  int64_t begin, end;  // marks of the door; 0 where launches are not timed
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

// A launch of a plan, for a ledger to count with each replay.
struct PlanRecord {
  LedgerKey key;
  Cost cost;
};

// Ledgers there are, of all threads; and launches of threads without one, while there is any.
extern std::atomic<int> ledgers;
extern std::atomic<int64_t> launches_without_ledger;

class Ledger {
 public:
  static constexpr size_t kKept = 1 << 14;  // the number of launches and of phase changes that are kept at least

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
  // Launches since the last call that are of this phase and of scope `from` are of scope `to`.
  void label(int phase, int from, int to);
  // Adds `times` replays of a plan. nanoseconds[i] is the total time of launch i over these replays; null if they were not timed.
  void replayed(const std::shared_ptr<const std::vector<PlanRecord>>& plan, int64_t times, const int64_t* nanoseconds);

  // After the last launch. The marks of what is kept become times.
  struct Taken {
    int64_t phases[kPhases];      // nanoseconds before the phase changes that are kept
    std::vector<LedgerSum> sums;  // in the order in which they came first
    std::vector<Record> records;  // the last ones
    std::vector<PhaseChange> phase_changes;
    int64_t launching;  // nanoseconds of the host in launches, where they are timed
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
  int64_t phases_[kPhases] = {};  // nanoseconds before it
};

}  // namespace pb
