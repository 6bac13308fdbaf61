// Binds the calling thread's phase, its scope, and the ledger of its launches.
#include "launch/ledger.h"

#include <memory>
#include <unordered_map>

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

#if defined(PB_CUDA)
// The lowest detail of ledger_begin that times launches. On a GPU the events between kernels would keep them from overlapping, so
// timing the phases alone must not add them.
constexpr int kTimed = 2;
#else
constexpr int kTimed = 1;
#endif

thread_local std::unique_ptr<Ledger> own_ledger;

// set_phase(number) -> the previous number. Sets the phase of this thread's later launches.
PyObject* set_phase(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int before = door.attribution.phase;
  door.attribution.phase = int(to_int(args[0]));
  if (door.ledger) door.ledger->enter(door.attribution.phase);
  return PyLong_FromLong(before);
}

// set_scope(number) -> the previous number. Sets the scope of this thread's later launches.
PyObject* set_scope(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int before = door.attribution.scope;
  door.attribution.scope = int(to_int(args[0]));
  return PyLong_FromLong(before);
}

// ---- scopes: numbers by which the layer above identifies the op or module that launches belong to

// The key of a scope: the name of an op and the line that called it (code, offset), or the path of a module (no code), within a
// scope.
struct Asked {
  PyObject *name, *code;
  int64_t offset;
  int within;

  bool operator==(const Asked& o) const { return name == o.name && code == o.code && offset == o.offset && within == o.within; }
};
struct HashAsked {
  size_t operator()(const Asked& a) const {
    const size_t mixed = reinterpret_cast<size_t>(a.name) ^ reinterpret_cast<size_t>(a.code) * 0x9e3779b97f4a7c15u;
    return (mixed ^ (size_t(a.offset) << 20 | size_t(a.within))) * 0x9e3779b97f4a7c15u >> 16;
  }
};
// scope: the new scope, or -1 to keep the current one. pulled: the scope of the op's pullback.
struct Given {
  int scope, pulled;
};
// The cached answers of give_scope. Keys compare the addresses of Python objects, so the map holds references to these objects.
// Protected by the GIL.
std::unordered_map<Asked, Given, HashAsked> scopes;
PyObject* give_scope = nullptr;

Given scope_for(const Asked& asked) {
  const auto found = scopes.find(asked);
  if (found != scopes.end()) return found->second;
  PyObject* given = PyObject_CallFunction(give_scope, "OOLi", asked.name, asked.code, (long long)asked.offset, asked.within);
  Given numbers{};
  const bool fine = given && PyArg_ParseTuple(given, "ii", &numbers.scope, &numbers.pulled);
  Py_XDECREF(given);
  if (!fine) throw PythonError{};
  Py_INCREF(asked.name), Py_INCREF(asked.code);
  return scopes[asked] = numbers;
}

// scopes_by(function) sets the function that numbers scopes: function(name of an op or path of a module, code or None, offset,
// current scope) -> (scope, scope of the pullback).
PyObject* scopes_by(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  give_scope = Py_NewRef(args[0]);
  Py_RETURN_NONE;
}

// scope() -> the scope of this thread's launches.
PyObject* scope(const void*, PyObject* const*, Py_ssize_t count) {
  expect_count(count, 0);
  return PyLong_FromLong(door.attribution.scope);
}

// enter_scope(path of a module) -> the previous scope.
PyObject* enter_scope(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int before = door.attribution.scope;
  door.attribution.scope = scope_for({args[0], Py_None, 0, before}).scope;
  return PyLong_FromLong(before);
}

// label(name of an op, code, offset) -> the scope of the op's pullback. Attributes the launches of the current phase and scope
// since the previous label to this op, called from this line.
PyObject* label(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  const int phase = door.attribution.phase, scope = door.attribution.scope;
  const auto [to, pulled] = scope_for({args[0], args[1], to_int(args[2]), scope});
  if (door.ledger && to >= 0) door.ledger->label(phase, scope, to);
  if (door.recorder && to >= 0) door.recorder->label(phase, scope, to);
  return PyLong_FromLong(pulled);
}

// ledger_begin(detail) starts to record this thread's launches. detail: 0 counts launches; 1 also times phases, and on the CPU
// launches; 2 also times launches on a GPU, and replays plans launch by launch; -1 counts launches without performing them.
PyObject* ledger_begin(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int64_t detail = to_int(args[0]);
  own_ledger = std::make_unique<Ledger>(detail >= 1, detail >= kTimed, detail == 2 || detail < 0, detail < 0);
  door.ledger = own_ledger.get();
  door.ledger->enter(door.attribution.phase);
  Py_RETURN_NONE;
}
// ledger_end() stops recording. The ledger is kept for ledger_take.
PyObject* ledger_end(const void*, PyObject* const*, Py_ssize_t count) {
  expect_count(count, 0);
  if (door.ledger) door.ledger->enter(kEnd);
  door.ledger = nullptr;
  Py_RETURN_NONE;
}

PyObject* charged(const LedgerKey& key) {
  const char* arithmetic = key.arithmetic == kTf32 ? "tf32" : kDTypeName[key.arithmetic];
  return Py_BuildValue("(siis)", key.kernel, key.phase, key.scope, arithmetic);
}

PyObject* figures(const Cost& c) {
  const int64_t all[] = {c.adds,    c.multiplies,  c.fmas,       c.matmul_flops, c.executed.flops(),
                         c.special, c.integer_ops, c.bytes_read, c.bytes_written};
  constexpr Py_ssize_t kCount = sizeof all / sizeof *all;
  PyObject* tuple = PyTuple_New(kCount);
  for (Py_ssize_t k = 0; tuple && k < kCount; ++k) PyTuple_SET_ITEM(tuple, k, PyLong_FromLongLong(all[k]));
  return tuple;
}

// Returns a list of build(item) for every item. Returns null with a Python exception set if a call of build does.
template <class Items, class Build> PyObject* list_of(const Items& items, Build&& build) {
  PyObject* list = PyList_New(Py_ssize_t(items.size()));
  for (size_t k = 0; list && k < items.size(); ++k) {
    PyObject* row = build(items[k]);
    if (!row) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, Py_ssize_t(k), row);
  }
  return list;
}

// ledger_take() -> (sums, launches, borders, phases, launching) since ledger_begin, or None without a ledger. Discards the ledger.
// sums: one ((kernel, phase, scope, dtype), launches, nanoseconds, figures) for launches that have these four in common.
// launches: the most recent ones, each ((kernel, phase, scope, dtype), figures, live bytes, begin, end).
// borders: the most recent starts of a phase, each (nanoseconds, phase).
// phases: the nanoseconds that each phase took before the first of these borders.
// launching: the nanoseconds that the host spent in launches, if these are timed.
// Points in time are nanoseconds of the monotonic clock.
PyObject* ledger_take(const void*, PyObject* const*, Py_ssize_t count) {
  expect_count(count, 0);
  if (!own_ledger) Py_RETURN_NONE;
  const Ledger::Taken taken = own_ledger->take();
  own_ledger.reset();
  PyObject* sums = list_of(taken.sums, [](const LedgerSum& s) {
    return Py_BuildValue("(NLLN)", charged(s.key), (long long)s.launches, (long long)s.nanoseconds, figures(s.cost));
  });
  PyObject* launches = list_of(taken.records, [](const Record& r) {
    return Py_BuildValue("(NNLLL)", charged(r.key), figures(r.cost), (long long)r.live_bytes, (long long)r.begin,
                         (long long)r.end);
  });
  PyObject* changes =
      list_of(taken.phase_changes, [](const PhaseChange& b) { return Py_BuildValue("(Li)", (long long)b.mark, b.phase); });
  const std::vector<int64_t> before(taken.phases, taken.phases + kPhases);
  PyObject* phases = list_of(before, [](int64_t nanoseconds) { return PyLong_FromLongLong(nanoseconds); });
  return Py_BuildValue("(NNNNL)", sums, launches, changes, phases, (long long)taken.launching);
}

// live_bytes() -> the bytes of all live arrays that kernels allocated.
PyObject* count_live_bytes(const void*, PyObject* const*, Py_ssize_t count) {
  expect_count(count, 0);
  return PyLong_FromLongLong(live_bytes());
}

// launches_elsewhere() -> the number of launches so far that a thread without a ledger made while another thread had one.
PyObject* count_elsewhere(const void*, PyObject* const*, Py_ssize_t) {
  return PyLong_FromLongLong(launches_without_ledger.load(std::memory_order_relaxed));
}

}  // namespace

void bind_ledger(PyObject* module) {
  define(module, "set_phase", set_phase, nullptr);
  define(module, "set_scope", set_scope, nullptr);
  define(module, "scopes_by", scopes_by, nullptr);
  define(module, "scope", scope, nullptr);
  define(module, "enter_scope", enter_scope, nullptr);
  define(module, "label", label, nullptr);
  define(module, "ledger_begin", ledger_begin, nullptr);
  define(module, "ledger_end", ledger_end, nullptr);
  define(module, "ledger_take", ledger_take, nullptr);
  define(module, "live_bytes", count_live_bytes, nullptr);
  define(module, "launches_elsewhere", count_elsewhere, nullptr);
}

}  // namespace pb
