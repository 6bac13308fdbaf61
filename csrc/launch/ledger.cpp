// The implementation of the ledger: it sums up costs and times of launches.
#include "launch/ledger.h"

#include <algorithm>

#include "launch/door.h"

namespace pb {

std::atomic<int> ledgers{0};
std::atomic<int64_t> launches_without_ledger{0};

void Cost::add(const Cost& other, int64_t times) {
  Counts::add(other, times);
  executed.add(other.executed, times);
  matmul_flops += times * other.matmul_flops;
  integer_ops += times * other.integer_ops;
  bytes_read += times * other.bytes_read, bytes_written += times * other.bytes_written;
}

size_t Ledger::Hash::operator()(const LedgerKey& key) const {
  const size_t rest = size_t(key.scope) << 8 | size_t(key.phase) << 5 | size_t(key.arithmetic);
  return (reinterpret_cast<size_t>(key.kernel) ^ rest * 0x9e3779b97f4a7c15u) * 0x9e3779b97f4a7c15u >> 16;
}

LedgerSum& Ledger::sum_of(const LedgerKey& key) {
  const auto [at, is_new] = places_.emplace(key, sums_.size());
  if (is_new) sums_.push_back({key, {}, 0, 0});
  return sums_[at->second];
}

void Ledger::fold_records(size_t count) {
  for (size_t k = 0; k < count; ++k) {
    Record& record = records_[k];
    LedgerSum& sum = sum_of(record.key);
    sum.cost.add(record.cost, 1), ++sum.launches;
    if (!timed) continue;
    record.begin = time_of(record.begin), record.end = time_of(record.end);
    sum.nanoseconds += record.end - record.begin;
  }
}

void Ledger::fold_phase_changes(size_t count) {
  for (size_t k = 0; k < count; ++k) {
    PhaseChange& change = changes_[k];
    change.mark = time_of(change.mark);
    if (folded_.mark) phases_[folded_.phase] += change.mark - folded_.mark;
    folded_ = change;
  }
}

void Ledger::add(const Record& record) {
  records_.push_back(record);
  if (records_.size() < 2 * kKept) return;
  fold_records(kKept);
  records_.erase(records_.begin(), records_.begin() + kKept);
  labelled_ = std::max(labelled_, kKept) - kKept;
}

void Ledger::enter(int phase) {
  if (!has_phases || (!changes_.empty() && changes_.back().phase == phase)) return;
  changes_.push_back({mark(), phase});
  if (changes_.size() < 2 * kKept) return;
  fold_phase_changes(kKept);
  changes_.erase(changes_.begin(), changes_.begin() + kKept);
}

void Ledger::label(int phase, int from, int to) {
  for (size_t k = labelled_; k < records_.size(); ++k) {
    LedgerKey& key = records_[k].key;
    if (key.phase == phase && key.scope == from) key.scope = to;
  }
  labelled_ = records_.size();
}

void Ledger::replayed(const std::shared_ptr<const std::vector<PlanRecord>>& plan, int64_t times, const int64_t* nanoseconds) {
  auto at = std::find_if(replays_.begin(), replays_.end(), [&](const Replays& r) { return r.plan == plan; });
  if (at == replays_.end()) at = replays_.insert(at, {plan, 0, std::vector<int64_t>(plan->size())});
  at->times += times;
  for (size_t k = 0; nanoseconds && k < plan->size(); ++k) at->nanoseconds[k] += nanoseconds[k];
}

Ledger::Taken Ledger::take() {
  Taken taken;
  fold_records(records_.size());
  for (const Replays& replays : replays_) {
    for (size_t k = 0; k < replays.plan->size(); ++k) {
      const auto& [key, cost] = (*replays.plan)[k];
      LedgerSum& sum = sum_of(key);
      sum.cost.add(cost, replays.times), sum.launches += replays.times, sum.nanoseconds += replays.nanoseconds[k];
    }
  }
  const PhaseChange before = folded_;
  std::copy(phases_, phases_ + kPhases, taken.phases);
  fold_phase_changes(changes_.size());
  if (before.mark) taken.phase_changes.push_back(before);
  taken.phase_changes.insert(taken.phase_changes.end(), changes_.begin(), changes_.end());
  taken.launching = launching_;
  taken.sums = std::move(sums_), taken.records = std::move(records_);
  return taken;
}

}  // namespace pb
