// Records the launches of a thread as a plan, and finds the block that each operand lies in. launch/plan.h describes plans.
#include "bindings/recorder.h"

#include <pthread.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_set>

#include "bindings/plan.h"
#include "bindings/result.h"
#include "bindings/tables.h"
#include "launch/rewrite.h"

namespace pb {

std::atomic<int> recordings{0};

namespace {

// A block's memory, which this thread allocated while recording or received as an input, until its owner releases it.
struct Span {
  int64_t bytes;
  int block;
};

class Recording;

// The recordings of all threads. Any thread may release memory that belongs to one of them.
struct All {
  std::mutex mutex;
  std::vector<Recording*> recordings;
};
All& all();

class Recording : public Recorder {
 public:
  // elsewhere: add() refuses every launch on this device, because another device's launches are recorded.
  explicit Recording(bool elsewhere) : elsewhere_(elsewhere), plan_(std::make_unique<OwnedPlan>()) {}
  ~Recording() override;

  void add(const Launch& launch, const Charge& charge) override {
    if (elsewhere_) throw Refused{"a launch on a device that is not recorded"};
    const std::lock_guard<std::mutex> lock(all().mutex);
    plan_->plan.add(launch, charge, [this](const View& v) { return place_of(v); });
  }
  void label(int phase, int from, int to) override {
    std::vector<Step>& steps = plan_->plan.steps;
    for (; labelled_ < steps.size(); ++labelled_) {
      Charge& charge = steps[labelled_].charge;
      if (charge.phase == phase && charge.scope == from) charge.scope = to;
    }
  }
  void made(char* data, int64_t bytes, Home home) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    spans_[data] = {bytes, int(plan_->plan.blocks.size())};
    plan_->plan.blocks.push_back({home, bytes});
  }
  void given_back(char* data) { spans_.erase(data); }  // the caller holds the lock of all()
  Place place_of(const View& v) const {
    auto after = spans_.upper_bound(v.data);
    if (after == spans_.begin()) return {-1, 0};
    const auto& [start, span] = *std::prev(after);
    return v.data < start + std::max<int64_t>(span.bytes, 1) ? Place{span.block, v.data - start} : Place{-1, 0};
  }
  void keep(PyObject* owner) {
    if (kept_.insert(owner).second) plan_->owners.push_back(Py_NewRef(owner));
  }
  OwnedPlan& owned() { return *plan_; }
  std::unique_ptr<OwnedPlan> take() { return std::move(plan_); }

 private:
  const bool elsewhere_;
  std::map<char*, Span> spans_;
  std::unordered_set<PyObject*> kept_;
  std::unique_ptr<OwnedPlan> plan_;
  size_t labelled_ = 0;
};

thread_local std::unique_ptr<Recording> own;

// A forked child has only the forking thread, so it keeps only this thread's recording. The fork takes the lock, because otherwise
// a thread that does not exist in the child might hold it there.
All& all() {
  static All* const found = [] {
    static All* made = new All;
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] {
                     made->recordings.clear();
                     if (own) made->recordings.push_back(own.get());
                     recordings = int(made->recordings.size());
                     made->mutex.unlock();
                   });
    return made;
  }();
  return *found;
}

void begin(bool elsewhere) {
  if (own) throw Refused{"a recording runs in this thread already"};
  own = std::make_unique<Recording>(elsewhere);
  {
    const std::lock_guard<std::mutex> lock(all().mutex);
    all().recordings.push_back(own.get());
  }
  ++recordings;
  door.recorder = own.get();
}

Recording::~Recording() {
  door.recorder = nullptr;
  --recordings;
  const std::lock_guard<std::mutex> lock(all().mutex);
  std::vector<Recording*>& others = all().recordings;
  others.erase(std::remove(others.begin(), others.end(), this), others.end());
}

// plan_begin(inputs) starts to record this thread's launches. inputs: the arrays that a replay replaces by its own inputs, or None
// to refuse every launch on this device because another device's launches are recorded.
PyObject* plan_begin(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  if (args[0] == Py_None) {
    begin(true);
    Py_RETURN_NONE;
  }
  const Items inputs(args[0]);
  std::vector<View> views;
  for (Py_ssize_t k = 0; k < inputs.size(); ++k) views.push_back(view_or_refuse(inputs[k]));
  begin(false);
  for (const View& v : views) own->made(v.data, extent_of(v).end - v.data, Home::input);
  own->owned().inputs = views;
  Py_RETURN_NONE;
}

// plan_length() -> the number of launches recorded so far.
PyObject* plan_length(const void*, PyObject* const*, Py_ssize_t count) {
  expect_count(count, 0);
  return PyLong_FromLong(own ? own->owned().plan.recorded : 0);
}

// plan_home(array) -> the number of the block that the array covers contiguously from end to end; -1 if it lies in a block in any
// other way; None if its memory belongs to no block.
PyObject* plan_home(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const View v = view_or_refuse(args[0]);
  const Place place = own ? own->place_of(v) : Place{-1, 0};
  if (place.block < 0) Py_RETURN_NONE;
  const Block& block = own->owned().plan.blocks[place.block];
  return PyLong_FromLong(place.offset == 0 && v.contiguous() && v.bytes() == block.bytes ? place.block : -1);
}

// plan_end(results, fusion) -> the plan. results: arrays that begin a block which the recording allocated; every replay allocates
// them again. fusion: the number of a Fusion.
PyObject* plan_end(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 2);
  if (!own) throw Refused{"no recording runs in this thread"};
  const Items results(args[0]);
  OwnedPlan& owned = own->owned();
  for (Py_ssize_t k = 0; k < results.size(); ++k) {
    const View v = view_or_refuse(results[k]);
    const Place place = own->place_of(v);
    if (place.block < 0 || place.offset != 0 || owned.plan.blocks[place.block].home != Home::arena)
      throw Refused{"a result that the recording did not make"};
    owned.plan.blocks[place.block].home = Home::result;
    owned.results.push_back({place.block, v});
  }
  auto plan = own->take();
  own.reset();
  return plan_capsule(std::move(plan), Fusion(to_int(args[1])));
}

// plan_abort() ends the recording and discards it.
PyObject* plan_abort(const void*, PyObject* const*, Py_ssize_t count) {
  expect_count(count, 0);
  own.reset();
  Py_RETURN_NONE;
}

}  // namespace

bool recording() { return own != nullptr; }

void tell_made(char* data, int64_t bytes) { own->made(data, bytes, Home::arena); }

void tell_given_back(char* data) noexcept {
  const std::lock_guard<std::mutex> lock(all().mutex);
  for (Recording* one : all().recordings) one->given_back(data);
}

void tell_seen(PyObject* owner, const View& v) {
  if (own->place_of(v).block < 0) own->keep(owner);
}

void tell_kept(PyObject* owner) { own->keep(owner); }

void bind_recorder(PyObject* module) {
  define(module, "plan_begin", plan_begin, nullptr);
  define(module, "plan_length", plan_length, nullptr);
  define(module, "plan_home", plan_home, nullptr);
  define(module, "plan_end", plan_end, nullptr);
  define(module, "plan_abort", plan_abort, nullptr);
  bind_plan(module);
}

}  // namespace pb
