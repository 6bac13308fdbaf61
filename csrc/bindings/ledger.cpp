// The thread's door, seen from Python: phase, scope, and the ledger of what was launched.
#include "launch/ledger.h"

#include <memory>
#include <unordered_map>

#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

#if defined(PB_CUDA)
constexpr int kTimed = 2;  // the detail from which launches are timed: an event between two kernels keeps them apart
#else
constexpr int kTimed = 1;
#endif

thread_local std::unique_ptr<Ledger> own_ledger;

// set_phase(number) -> the number before. Launches from now on are charged to it.
PyObject* set_phase(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int before = door.attribution.phase;
  door.attribution.phase = int(to_int(args[0]));
  if (door.ledger) door.ledger->enter(door.attribution.phase);
  return PyLong_FromLong(before);
}

PyObject* set_scope(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int before = door.attribution.scope;
  door.attribution.scope = int(to_int(args[0]));
  return PyLong_FromLong(before);
}

// ---- scopes: numbers that the layer above gives to what launches are for

// What a scope was asked for by: an op's name and the line that called it, or the path of a module, within a scope.
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
// scope: -1 where launches stay what they are for. pulled: of the pullback.
struct Given {
  int scope, pulled;
};
// By the addresses of objects, which are kept. Under the GIL.
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

// scopes_by(function): function(op's name or module's path, code or None, offset, scope) gives (scope, scope of the pullback).
PyObject* scopes_by(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  give_scope = Py_NewRef(args[0]);
  Py_RETURN_NONE;
}

// scope() -> what launches are charged to now.
PyObject* scope(const void*, PyObject* const*, Py_ssize_t count) {
  expect_count(count, 0);
  return PyLong_FromLong(door.attribution.scope);
}

// enter_scope(path of a module) -> the scope before.
PyObject* enter_scope(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int before = door.attribution.scope;
  door.attribution.scope = scope_for({args[0], Py_None, 0, before}).scope;
  return PyLong_FromLong(before);
}

// label(op's name, code, offset) -> the scope of the op's pullback. This phase's launches of this scope since the last call were for
// that op, called from there.
PyObject* label(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 3);
  const int phase = door.attribution.phase, scope = door.attribution.scope;
  const auto [to, pulled] = scope_for({args[0], args[1], to_int(args[2]), scope});
  if (door.ledger && to >= 0) door.ledger->label(phase, scope, to);
  if (door.recorder && to >= 0) door.recorder->label(phase, scope, to);
  return PyLong_FromLong(pulled);
}

// ledger_begin(detail): this thread's launches are recorded from now on. detail: 0 counts, 1 times phases, 2 times launches, and
// replays plans launch by launch; -1 counts launches that are not performed.
PyObject* ledger_begin(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int64_t detail = to_int(args[0]);
  own_ledger = std::make_unique<Ledger>(detail >= 1, detail >= kTimed, detail == 2 || detail < 0, detail < 0);
  door.ledger = own_ledger.get();
  door.ledger->enter(door.attribution.phase);
  Py_RETURN_NONE;
}
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

// A list of what build(item) makes of each.
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

// ledger_take() -> (sums, launches, phase changes, phases, launching) since ledger_begin, and nothing any more. A sum is
// ((kernel, phase, scope, dtype), launches, nanoseconds, figures); a launch ((kernel, phase, scope, dtype), figures, live bytes,
// begin, end), the last ones; a change (nanoseconds, phase), the last ones; phases: nanoseconds of each before them; launching:
// those of the host in launches. Times are of the monotonic clock.
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

// live_bytes() -> of the arrays that kernels made.
PyObject* count_live_bytes(const void*, PyObject* const*, Py_ssize_t count) {
  expect_count(count, 0);
  return PyLong_FromLongLong(live_bytes());
}

// launches_elsewhere() -> launches of threads without a ledger, so far, while any thread had one.
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
