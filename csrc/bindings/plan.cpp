// Binds the functions that replay a plan and describe it.
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
#include "families/matmul.h"
#include "launch/failure.h"
#include "launch/clock.h"

#if defined(PB_CUDA)
#include "cuda/device.h"
#endif

namespace pb {
namespace {

constexpr const char* kName = "pullback.plan";
constexpr size_t kNear = 16;                    // up to this many inputs and results need no allocation for their views
constexpr int64_t kUninterrupted = 50'000'000;  // nanoseconds between the checks for signals in a run of several steps

OwnedPlan& plan_or_refuse(PyObject* capsule) {
  auto* plan = static_cast<OwnedPlan*>(PyCapsule_GetPointer(capsule, kName));
  if (!plan) throw PythonError{};
  return *plan;
}

char* new_memory(OwnedPlan& owned, int64_t bytes) {
  owned.memory.push_back(pb::allocate(size_t(bytes), Holder::recordings));
  return static_cast<char*>(owned.memory.back().data);
}

// Allocates the arena and places the plan's temporaries in it.
void give_memory(OwnedPlan& owned, Plan& plan) {
  char* arena = plan.arena_bytes ? new_memory(owned, plan.arena_bytes) : nullptr;
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    const Block& block = plan.blocks[b];
    if (block.kind == BlockKind::arena && block.first >= 0) plan.move(int(b), arena + block.offset);
  }
}

// Computes the ledger entries of the plan: one for each launch of the unfused plan.
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

// Returns the unfused plan with its memory, ready to be replayed launch by launch.
Plan& plain_plan(OwnedPlan& owned) {
  make_figures(owned);
  if (!owned.plain_ready) give_memory(owned, owned.plain);
  owned.plain_ready = true;
  return owned.plain;
}

// The number of replays that have begun and not ended, in all threads. As long as there is one, kernels::everywhere() does not
// change. The GIL protects it.
int running = 0;
struct Running {
  Running() { ++running; }
  ~Running() { running = std::max(0, running - 1); }
};

#if defined(PB_CUDA)
// A process that was forked from one that had used a GPU cannot replay: cuda::stream() throws a Failure there.
struct BesideOthers {
  const cuda::Stream stream = cuda::stream();
};
#else
// Every replay holds this mutex in shared mode, and a fork waits until no replay does. A child process therefore finds no plan
// half run, and no lock or count of a thread that does not exist there. A replay never requests the GIL while it holds the mutex,
// because the forking thread has the GIL.
std::shared_mutex& replays() {
  static std::shared_mutex* all = [] {
    static std::shared_mutex* made = new std::shared_mutex;
    pthread_atfork([] { made->lock(); }, [] { made->unlock(); }, [] { new (made) std::shared_mutex, running = 0; });
    return made;
  }();
  return *all;
}
struct BesideOthers {
  const std::shared_lock<std::shared_mutex> lock{replays()};
};
#endif

// Returns the view of an input, which must have the dtype, shape and strides of the recorded one, after a leading axis of steps if
// steps > 0. Accepts only tensors and arrays, because Python compares the other arguments itself.
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

// Returns a list of new tensors for the results, and writes their views to `views`.
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

// Adds the replays to this thread's ledger. The time of a group is attributed to the group's first recorded launch.
void tell_replays(OwnedPlan& owned, int64_t passes, const std::vector<int64_t>& of_groups) {
  make_figures(owned);
  std::vector<int64_t> nanoseconds(owned.figures->size());
  for (size_t g = 0; g < of_groups.size(); ++g) nanoseconds[owned.figures_of_groups[g]] += of_groups[g];
  door.ledger->replayed(owned.figures, passes, nanoseconds.data());
}

// Runs `passes` steps, beginning with step `from`, without the GIL.
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

// Runs all steps. On the CPU it checks for signals about every kUninterrupted nanoseconds, so that Ctrl-C ends the run between two
// steps. On a GPU it does not, because queueing the work takes little time.
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

// Returns the number of complete steps of the last run, and the number of recorded launches that the unfinished step had begun.
std::pair<int64_t, int> done(const OwnedPlan& owned) {
  const int begun = owned.progress.begun;
  return {owned.done + owned.progress.passes,
          begun ? (owned.ran_plain ? owned.plain : owned.plan).steps[begun - 1].number + 1 : 0};
}

// Adds to attributes of Python objects how often the run has reached their point in the recording. counts: tuples (object, name of
// the attribute, number of launches recorded before that point). C++ does this, without a class's own __setattr__, so that no signal
// handler can run between the work and the counting: PyErr_Restore would drop the KeyboardInterrupt.
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
    if (now) PyObject_GenericSetAttr(object, name, now);
    Py_XDECREF(before), Py_XDECREF(added), Py_XDECREF(now);
  }
  PyErr_Restore(type, value, traceback);
}

// Warns once that a plan's launches do not run as a CUDA graph, which makes them slower. If a warnings filter turns the warning
// into an error, the error is only printed, because the run is already over.
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

// plan_run(plan, inputs, steps, counts) -> a list of tensors, the results. With steps > 0, inputs and results have a leading axis
// of this length, and the plan runs once per index. counts: see count_runs(), which also counts the steps done before an exception.
PyObject* plan_run(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 4);
  OwnedPlan& owned = plan_or_refuse(args[0]);
  const Items inputs(args[1]), counts(args[3]);
  const int64_t steps = to_int(args[2]);
  const size_t in = owned.inputs.size(), all = in + owned.results.size();
  if (inputs.size() != Py_ssize_t(in)) throw Refused{"another number of inputs"};
  const Running counted;
  if (owned.everywhere != kernels::everywhere()) throw Refused{"a recording of the other mode"};  // a thread has just set it
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
    if (e.kernel) throw;  // a GPU reports the index after the launch that found it, perhaps one before this run
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

// plan_done(plan) -> (complete steps, recorded launches that the unfinished step had begun, the name of the last of these, or of
// the launch that checks indices if the last run together) of the last run, which an exception ended.
PyObject* plan_done(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const OwnedPlan& owned = plan_or_refuse(args[0]);
  const auto [passes, launches] = done(owned);
  const int begun = owned.progress.begun;
  const char* name = "";
  if (begun) {
    const Step& step = (owned.ran_plain ? owned.plain : owned.plan).steps[begun - 1];
    name = step.names[step.checks];
  }
  return Py_BuildValue("(Lis)", (long long)passes, launches, name);
}

// set_everywhere(on) -> True. Sets kernels::everywhere() for all threads. Returns False, and changes nothing, while any thread runs a
// replay.
PyObject* set_everywhere(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  if (running) Py_RETURN_FALSE;
  kernels::set_everywhere(to_bool(args[0]));
  Py_RETURN_TRUE;
}

// plan_facts(plan) -> (recorded launches, dead launches, launches kept, kernels per replay, bytes of the arena)
PyObject* plan_facts(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const Plan& plan = plan_or_refuse(args[0]).plan;
  return Py_BuildValue("(iiiiL)", plan.recorded, plan.dead, int(plan.steps.size()), int(plan.groups.size()),
                       (long long)plan.arena_bytes);
}

// plan_state(plan) -> (number of CUDA graphs, nodes of the newest graph, kernels among these nodes, the reason why kernels are
// launched one by one or None)
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

// plan_rows(plan) -> a list with one tuple per launch of the plan: (names of the recorded kernels it performs, group, phase, dtype,
// shape of its first output, the reason why it starts a new group or None).
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
  plan->everywhere = kernels::everywhere();
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
  define(module, "set_everywhere", set_everywhere, nullptr);
  define(module, "plan_facts", plan_facts, nullptr);
  define(module, "plan_state", plan_state, nullptr);
  define(module, "plan_rows", plan_rows, nullptr);
}

}  // namespace pb
