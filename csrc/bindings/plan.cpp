// Replaying a plan from Python, and what it tells of itself.
#include "bindings/plan.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <shared_mutex>
#include <string>
#include <utility>

#include "bindings/gil.h"
#include "bindings/result.h"
#include "bindings/tables.h"
#include "launch/failure.h"
#include "launch/clock.h"

#if defined(PB_CUDA)
#include "cuda/device.h"
#endif

namespace pb {
namespace {

constexpr const char* kName = "pullback.plan";
constexpr size_t kNear = 16;                    // so many inputs and results without an allocation
constexpr int64_t kUninterrupted = 50'000'000;  // nanoseconds that a run of several steps takes before it looks at the signals

OwnedPlan& plan_or_refuse(PyObject* capsule) {
  auto* plan = static_cast<OwnedPlan*>(PyCapsule_GetPointer(capsule, kName));
  if (!plan) throw PythonError{};
  return *plan;
}

char* new_memory(OwnedPlan& owned, int64_t bytes) {
  owned.memory.push_back(pb::allocate(size_t(bytes), Holder::recordings));
  return static_cast<char*>(owned.memory.back().data);
}

// The arena for temporaries.
void give_memory(OwnedPlan& owned, Plan& plan) {
  char* arena = plan.arena_bytes ? new_memory(owned, plan.arena_bytes) : nullptr;
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    const Block& block = plan.blocks[b];
    if (block.kind == BlockKind::arena && block.first >= 0) plan.move(int(b), arena + block.offset);
  }
}

// What a ledger is told of: every launch by itself, as it was recorded.
void make_figures(OwnedPlan& owned) {
  if (owned.figures) return;
  owned.plain.finish(owned.plain_fusion, kArenaAlign);
  std::vector<PlanRecord> figures;
  for (const Step& step : owned.plain.steps) figures.push_back(figures_of(step.launch, step.attribution));
  owned.figures = std::make_shared<const std::vector<PlanRecord>>(std::move(figures));
  for (const Group& group : owned.plan.groups) {
    size_t place = 0;
    while (owned.plain.steps[place].number != owned.plan.steps[group.first].number) ++place;
    owned.figures_of_groups.push_back(place);
  }
}

// The same with memory, to replay launch by launch.
Plan& plain_plan(OwnedPlan& owned) {
  make_figures(owned);
  if (!owned.plain_ready) give_memory(owned, owned.plain);
  owned.plain_ready = true;
  return owned.plain;
}

#if defined(PB_CUDA)
// A child of a process that has used a GPU cannot replay: its first question for a stream says so.
struct BesideOthers {
  const cuda::Stream stream = cuda::stream();
};
#else
// Every replay holds it, shared with the others; a fork waits until nobody does. So a child finds no plan half run, and no lock taken
// by a thread that it does not have. Nobody who holds it asks for the GIL, which the forking thread has.
std::shared_mutex& replays() {
  static std::shared_mutex* all = [] {
    static std::shared_mutex* made = new std::shared_mutex;
    pthread_atfork([] { made->lock(); }, [] { made->unlock(); }, [] { new (made) std::shared_mutex; });
    return made;
  }();
  return *all;
}
struct BesideOthers {
  const std::shared_lock<std::shared_mutex> lock{replays()};
};
#endif

// The input in the place of the recorded one, which it is like but for the leading axis of steps. Arguments that are no tensors
// are part of what Python compares: here only a tensor or an array will do.
View input_or_refuse(PyObject* object, const View& recorded, int64_t steps) {
  const View v = view_or_refuse(bare(object));
  const int lead = steps ? 1 : 0;
  bool same = v.dtype == recorded.dtype && v.ndim == recorded.ndim + lead && (!steps || v.shape[0] == steps);
  for (int d = 0; same && d < recorded.ndim; ++d)
    same = v.shape[d + lead] == recorded.shape[d] &&
           (v.stride[d + lead] == recorded.stride[d] || recorded.shape[d] == 1 || recorded.size() == 0);
  if (!same) throw Refused{"an input unlike the recorded one"};
  return v;
}

// New arrays for the results, as tensors in a list; their views follow those of the inputs.
PyObject* new_results(const OwnedPlan& owned, int64_t steps, View* views) {
  PyObject* list = PyList_New(Py_ssize_t(owned.results.size()));
  if (!list) throw PythonError{};
  const int lead = steps ? 1 : 0;
  try {
    for (size_t k = 0; k < owned.results.size(); ++k) {
      const View& like = owned.results[k].view;
      int64_t shape[kMaxDims + 1] = {steps};
      if (like.ndim + lead > kMaxDims) throw Refused{"a result of 8 axes has no room for that of steps"};
      std::memcpy(shape + lead, like.shape, sizeof like.shape);
      PyList_SET_ITEM(list, Py_ssize_t(k), wrap(new_array(like.dtype, like.ndim + lead, shape, views[k])));
    }
  } catch (...) {
    Py_DECREF(list);
    throw;
  }
  return list;
}

// The time of a group is that of its first recorded launch.
void tell_replays(OwnedPlan& owned, int64_t passes, const std::vector<int64_t>& of_groups) {
  make_figures(owned);
  std::vector<int64_t> nanoseconds(owned.figures->size());
  for (size_t g = 0; g < of_groups.size(); ++g) nanoseconds[owned.figures_of_groups[g]] += of_groups[g];
  door.ledger->replayed(owned.figures, passes, nanoseconds.data());
}

// `passes` steps from number `from` on, without the GIL.
void run_passes(OwnedPlan& owned, int64_t steps, int64_t from, int64_t passes, const View* views) {
  const size_t all = owned.plan.given.size();
  const Released released;
  const BesideOthers beside_others;
  const std::lock_guard<std::mutex> lock(owned.mutex);
  StridedAddress near[kNear];
  std::vector<StridedAddress> far(all > kNear ? all : 0);
  StridedAddress* given = all > kNear ? far.data() : near;
  for (size_t k = 0; k < all; ++k) {
    const int64_t stride = steps ? views[k].stride[0] : 0;
    given[k] = {views[k].data + from * stride, stride};
  }
  owned.progress = {};
  owned.ran_plain = door.ledger && door.ledger->singly;
  if (owned.ran_plain) return replay_singly(plain_plan(owned), given, passes, owned.progress, run);
  std::vector<int64_t> nanoseconds;
  if (door.ledger && door.ledger->timed) {
    nanoseconds.resize(owned.plan.groups.size());
    owned.progress.nanoseconds = nanoseconds.data();
  }
  owned.program->run(given, passes, owned.progress);
  if (door.ledger) return tell_replays(owned, passes, nanoseconds);
  if (ledgers.load(std::memory_order_relaxed) == 0) return;
  make_figures(owned);
  launches_without_ledger.fetch_add(passes * int64_t(owned.figures->size()), std::memory_order_relaxed);
}

// All steps. On the CPU with a look at the signals now and then: Ctrl-C ends the run between two steps. A GPU is given its work in no
// time.
void run_steps(OwnedPlan& owned, int64_t steps, const View* views) {
  const int64_t passes = steps ? steps : 1;
  owned.done = 0;
#if defined(PB_CUDA)
  run_passes(owned, steps, 0, passes, views);
#else
  for (int64_t next = 1;;) {
    const int64_t begin = host_time();
    run_passes(owned, steps, owned.done, next, views);
    if (owned.done + next == passes) break;
    owned.done += next, owned.progress = {};
    const int64_t each = (host_time() - begin) / next + 1;
    next = std::min(passes - owned.done, std::max<int64_t>(1, kUninterrupted / each));
    if (PyErr_CheckSignals() < 0) throw PythonError{};
  }
#endif
}

// The steps that the last run has done as a whole; of the step after them, how many of the recorded launches were begun.
std::pair<int64_t, int> done(const OwnedPlan& owned) {
  const int begun = owned.progress.begun;
  return {owned.done + owned.progress.passes,
          begun ? (owned.ran_plain ? owned.plain : owned.plan).steps[begun - 1].number + 1 : 0};
}

// Adds what the run has done to attributes of Python's objects: counts are tuples (object, name of the attribute, launches before it was
// counted in the recording). Here, because no signal comes between what is done and what is counted.
void count_runs(const OwnedPlan& owned, const Items& counts) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const auto [passes, launches] = done(owned);
  for (Py_ssize_t k = 0; k < counts.size(); ++k) {
    PyObject *object = PyTuple_GET_ITEM(counts[k], 0), *name = PyTuple_GET_ITEM(counts[k], 1);
    const int64_t more = passes + (PyLong_AsLong(PyTuple_GET_ITEM(counts[k], 2)) < launches);
    PyObject* before = more ? PyObject_GetAttr(object, name) : nullptr;
    PyObject* added = before ? PyLong_FromLongLong(more) : nullptr;
    PyObject* now = added ? PyNumber_Add(before, added) : nullptr;
    if (now) PyObject_SetAttr(object, name, now);
    Py_XDECREF(before), Py_XDECREF(added), Py_XDECREF(now);
  }
  PyErr_Restore(type, value, traceback);
}

// Says once that a plan's launches do not run as a graph, which costs time. A filter that makes an error of warnings cannot stop a run
// that is over.
void warn_of_single_launches(OwnedPlan& owned) {
  if (owned.warned || !owned.program->gave_up) return;
  owned.warned = true;
  const std::string text = "a captured function does not run as a CUDA graph: " + owned.program->state().why_single +
                           ". Its kernels are launched one by one instead, with the same results in more time. explain() keeps "
                           "the reason; PULLBACK_CUDA_GRAPHS=0 launches them so from the beginning.";
  PyObject* site = PyImport_ImportModule("pullback.autodiff.site");
  PyObject* done = site ? PyObject_CallMethod(site, "warn", "sO", text.c_str(), PyExc_RuntimeWarning) : nullptr;
  if (!done) PyErr_WriteUnraisable(nullptr);
  Py_XDECREF(done);
  Py_XDECREF(site);
}

// plan_run(plan, inputs, steps, counts) -> results, tensors. With steps > 0 inputs and results have a leading axis of so many, run one
// after the other. counts: see count_runs; what was done before an exception is counted, too.
PyObject* plan_run(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  OwnedPlan& owned = plan_or_refuse(args[0]);
  const Items inputs(args[1]), counts(args[3]);
  const int64_t steps = to_int(args[2]);
  const size_t in = owned.inputs.size(), all = in + owned.results.size();
  if (inputs.size() != Py_ssize_t(in)) throw Refused{"another number of inputs"};
#if defined(PB_CUDA)
  cuda::use_device(owned.device);
#endif
  View near[kNear];
  std::vector<View> far(all > kNear ? all : 0);
  View* views = all > kNear ? far.data() : near;
  for (size_t k = 0; k < in; ++k) views[k] = input_or_refuse(inputs[k], owned.inputs[k], steps);
  PyObject* results = new_results(owned, steps, views + in);
  try {
    run_steps(owned, steps, views);
  } catch (const OutOfRange& e) {
    count_runs(owned, counts);
    Py_DECREF(results);
    if (e.kernel) throw;  // a GPU tells of a launch before
    throw BadIndex{e.where, e.index, e.length};
  } catch (...) {
    count_runs(owned, counts);
    Py_DECREF(results);
    throw;
  }
  count_runs(owned, counts);
  warn_of_single_launches(owned);
  return results;
}

// plan_done(plan) -> of the last run, that an exception ended: steps that were done as a whole; of the step after them, how many
// of the recorded launches were begun, and the name of the last.
PyObject* plan_done(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const OwnedPlan& owned = plan_or_refuse(args[0]);
  const auto [passes, launches] = done(owned);
  const int begun = owned.progress.begun;
  const char* name = begun ? (owned.ran_plain ? owned.plain : owned.plan).steps[begun - 1].names.front() : "";
  return Py_BuildValue("(Lis)", (long long)passes, launches, name);
}

// plan_facts(plan) -> (launches recorded, dead ones, launches kept, kernels per replay, bytes of the arena).
PyObject* plan_facts(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const Plan& plan = plan_or_refuse(args[0]).plan;
  return Py_BuildValue("(iiiiL)", plan.recorded, plan.dead, int(plan.steps.size()), int(plan.groups.size()),
                       (long long)plan.arena_bytes);
}

// plan_state(plan) -> (CUDA graphs, nodes of the last one, those of them that are kernels, why kernels are launched one by one or None).
PyObject* plan_state(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const ProgramState state = plan_or_refuse(args[0]).program->state();
  return Py_BuildValue("(iiiz)", state.graphs, state.nodes, state.kernel_nodes,
                       state.why_single.empty() ? nullptr : state.why_single.c_str());
}

PyObject* shape_of(const View& v) {
  PyObject* shape = PyTuple_New(v.ndim);
  for (int d = 0; shape && d < v.ndim; ++d) PyTuple_SET_ITEM(shape, d, PyLong_FromLongLong(v.shape[d]));
  return shape;
}

PyObject* names_of(const Step& step) {
  PyObject* names = PyTuple_New(Py_ssize_t(step.names.size()));
  for (size_t k = 0; names && k < step.names.size(); ++k)
    PyTuple_SET_ITEM(names, Py_ssize_t(k), PyUnicode_FromString(step.names[k]));
  return names;
}

// plan_rows(plan) -> for each launch (the recorded kernels that it does, group, phase, dtype, shape of its first output, why it begins a group).
PyObject* plan_rows(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const Plan& plan = plan_or_refuse(args[0]).plan;
  PyObject* rows = PyList_New(0);
  if (!rows) throw PythonError{};
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    for (int s = plan.groups[g].first; s < plan.groups[g].first + plan.groups[g].count; ++s) {
      const Step& step = plan.steps[s];
      const View& out = plan.out(step).view;
      PyObject* row = Py_BuildValue("(NiisNz)", names_of(step), int(g), step.attribution.phase, kDTypeName[int(out.dtype)],
                                    shape_of(out), step.unfused_reason);
      if (!row || PyList_Append(rows, row) < 0) {
        Py_XDECREF(row);
        Py_DECREF(rows);
        throw PythonError{};
      }
      Py_DECREF(row);
    }
  }
  return rows;
}

}  // namespace

OwnedPlan::~OwnedPlan() {
  program.reset();
  for (const Allocation& block : memory) pb::release(block);
  for (PyObject* owner : owners) Py_DECREF(owner);
}

PyObject* plan_capsule(std::unique_ptr<OwnedPlan> plan, Fusion fusion) {
  for (size_t k = 0; k < plan->inputs.size(); ++k) plan->plan.given.push_back(int(k));
  for (const PlanResult& result : plan->results) plan->plan.given.push_back(result.block);
  plan->plain = plan->plan;
  if (fusion == Fusion::none) plan->plain_fusion = Fusion::none;
  plan->plan.finish(fusion, kArenaAlign);
#if defined(PB_CUDA)
  plan->device = cuda::current_device();
#endif
  give_memory(*plan, plan->plan);
  plan->program = compile(plan->plan);
  PyObject* capsule = PyCapsule_New(plan.get(), kName,
                                    [](PyObject* self) { delete static_cast<OwnedPlan*>(PyCapsule_GetPointer(self, kName)); });
  if (!capsule) throw PythonError{};
  plan.release();
  return capsule;
}

void bind_plan(PyObject* module) {
  define(module, "plan_run", plan_run, nullptr);
  define(module, "plan_done", plan_done, nullptr);
  define(module, "plan_facts", plan_facts, nullptr);
  define(module, "plan_state", plan_state, nullptr);
  define(module, "plan_rows", plan_rows, nullptr);
}

}  // namespace pb
