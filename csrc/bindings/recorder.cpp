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
struct BlockRange {
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

  void add(const Launch& launch, const Attribution& attribution) override {
    if (elsewhere_) throw Refused{"a launch on a device that is not recorded"};
    const std::lock_guard<std::mutex> lock(all().mutex);
    plan_->plan.add(launch, attribution, [this](const View& v) { return location_of(v); });
  }
  void label(int phase, int from, int to) override {
    std::vector<Step>& steps = plan_->plan.steps;
    for (; labelled_ < steps.size(); ++labelled_) {
      Attribution& attribution = steps[labelled_].attribution;
      if (attribution.phase == phase && attribution.scope == from) attribution.scope = to;
    }
  }
  void made(char* data, int64_t bytes, BlockKind kind) {
    const std::lock_guard<std::mutex> lock(all().mutex);
    ranges_[data] = {bytes, int(plan_->plan.blocks.size())};
    plan_->plan.blocks.push_back({kind, bytes});
  }
  void given_back(char* data) { ranges_.erase(data); }  // the caller holds the lock of all()
  OperandLocation location_of(const View& v) const {
    auto after = ranges_.upper_bound(v.data);
    if (after == ranges_.begin()) return {-1, 0};
    const auto& [start, range] = *std::prev(after);
    return v.data < start + std::max<int64_t>(range.bytes, 1) ? OperandLocation{range.block, v.data - start}
                                                              : OperandLocation{-1, 0};
  }
  void keep(PyObject* owner) {
    if (kept_.insert(owner).second) plan_->owners.push_back(Py_NewRef(owner));
  }
  void note(PyObject* tensor) {
    PyObject* reference = PyWeakref_NewRef(tensor, nullptr);
    if (!reference) throw PythonError{};
    tensors_.push_back(reference);
  }
  const std::vector<PyObject*>& tensors() const { return tensors_; }
  OwnedPlan& owned() { return *plan_; }
  std::unique_ptr<OwnedPlan> take() { return std::move(plan_); }

 private:
  const bool elsewhere_;
  std::map<char*, BlockRange> ranges_;
  std::unordered_set<PyObject*> kept_;
  std::vector<PyObject*> tensors_;  // weak references to the tensors that were made while recording
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
  for (PyObject* reference : tensors_) Py_DECREF(reference);
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
  for (const View& v : views) own->made(v.data, extent_of(v).end - v.data, BlockKind::input);
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
  const OperandLocation location = own ? own->location_of(v) : OperandLocation{-1, 0};
  if (location.block < 0) Py_RETURN_NONE;
  const Block& block = own->owned().plan.blocks[location.block];
  return PyLong_FromLong(location.offset == 0 && v.contiguous() && v.bytes() == block.bytes ? location.block : -1);
}

// plan_tensors() -> a list of the tensors that this thread has made while recording and that are still alive.
PyObject* plan_tensors(const void*, PyObject* const*, Py_ssize_t count) {
  expect_count(count, 0);
  PyObject* living = PyList_New(0);
  if (!living) throw PythonError{};
  for (PyObject* reference : own ? own->tensors() : std::vector<PyObject*>()) {
    PyObject* tensor = referent(reference);
    const bool failed = tensor && PyList_Append(living, tensor) < 0;
    Py_XDECREF(tensor);
    if (failed) {
      Py_DECREF(living);
      throw PythonError{};
    }
  }
  return living;
}

// plan_note(tensor) adds a tensor that Python has made to those of plan_tensors().
PyObject* plan_note(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  if (own) own->note(args[0]);
  Py_RETURN_NONE;
}

// plan_maker(array) -> the number of the scope of the last launch that wrote to the memory of the array; -1 if none did.
PyObject* plan_maker(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int block = own ? own->location_of(view_or_refuse(args[0])).block : -1;
  const Plan* plan = block < 0 ? nullptr : &own->owned().plan;
  for (size_t s = plan ? plan->steps.size() : 0; s-- > 0;) {
    const Step& step = plan->steps[s];
    for (int k = 0; k < step.launch.outputs; ++k)
      if (plan->out(step, k).location.block == block) return PyLong_FromLong(step.attribution.scope);
  }
  return PyLong_FromLong(-1);
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
    const OperandLocation location = own->location_of(v);
    if (location.block < 0 || location.offset != 0 || owned.plan.blocks[location.block].kind != BlockKind::arena)
      throw Refused{"a result that the recording did not make"};
    owned.plan.blocks[location.block].kind = BlockKind::result;
    owned.results.push_back({location.block, v});
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

void on_allocate(char* data, int64_t bytes) { own->made(data, bytes, BlockKind::arena); }

void on_free(char* data) noexcept {
  const std::lock_guard<std::mutex> lock(all().mutex);
  for (Recording* one : all().recordings) one->given_back(data);
}

void on_operand(PyObject* owner, const View& v) {
  if (own->location_of(v).block < 0) own->keep(owner);
}

void on_tensor(PyObject* tensor) { own->note(tensor); }

void keep_alive(PyObject* owner) { own->keep(owner); }

void bind_recorder(PyObject* module) {
  define(module, "plan_begin", plan_begin, nullptr);
  define(module, "plan_length", plan_length, nullptr);
  define(module, "plan_home", plan_home, nullptr);
  define(module, "plan_tensors", plan_tensors, nullptr);
  define(module, "plan_note", plan_note, nullptr);
  define(module, "plan_maker", plan_maker, nullptr);
  define(module, "plan_end", plan_end, nullptr);
  define(module, "plan_abort", plan_abort, nullptr);
  bind_plan(module);
}

}  // namespace pb
