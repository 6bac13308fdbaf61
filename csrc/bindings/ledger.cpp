// The thread's door, seen from Python: phase, scope, and the ledger of what was launched.
#include "launch/ledger.h"

#include <memory>

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
PyObject* set_phase(const void*, PyObject* const* args, Py_ssize_t) {
  const int before = door.charge.phase;
  door.charge.phase = int(to_int(args[0]));
  if (door.ledger) door.ledger->enter(door.charge.phase);
  return PyLong_FromLong(before);
}

PyObject* set_scope(const void*, PyObject* const* args, Py_ssize_t) {
  const int before = door.charge.scope;
  door.charge.scope = int(to_int(args[0]));
  return PyLong_FromLong(before);
}

// label(to): this phase's launches of this scope since the last call are of scope `to`.
PyObject* label(const void*, PyObject* const* args, Py_ssize_t) {
  const int phase = door.charge.phase, scope = door.charge.scope;
  const int to = int(to_int(args[0]));
  if (door.ledger) door.ledger->label(phase, scope, to);
  if (door.recorder) door.recorder->label(phase, scope, to);
  Py_RETURN_NONE;
}

// ledger_begin(detail): this thread's launches are recorded from now on. detail: 0 counts, 1 times phases, 2 times launches, and
// replays plans launch by launch.
PyObject* ledger_begin(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  const int64_t detail = to_int(args[0]);
  own_ledger = std::make_unique<Ledger>(detail >= 1, detail >= kTimed, detail == 2);
  door.ledger = own_ledger.get();
  door.ledger->enter(door.charge.phase);
  Py_RETURN_NONE;
}
PyObject* ledger_end(const void*, PyObject* const*, Py_ssize_t) {
  if (door.ledger) door.ledger->enter(kEnd);
  door.ledger = nullptr;
  Py_RETURN_NONE;
}

PyObject* charged(const LedgerKey& key) {
  const char* arithmetic = key.arithmetic == kTf32 ? "tf32" : kDTypeName[key.arithmetic];
  return Py_BuildValue("(siis)", key.kernel, key.phase, key.scope, arithmetic);
}

PyObject* figures(const Cost& c) {
  const int64_t all[] = {c.adds,    c.multiplies,  c.fmas,       c.matmul_flops, c.executed_flops,
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

// ledger_take() -> (sums, launches, borders, phases) since ledger_begin, and nothing any more. A sum is ((kernel, phase, scope, dtype),
// launches, nanoseconds, figures); a launch ((kernel, phase, scope, dtype), figures, live bytes, begin, end), the last ones; a border
// (nanoseconds, phase), the last ones; phases: nanoseconds of each before them. Times are of the monotonic clock.
PyObject* ledger_take(const void*, PyObject* const*, Py_ssize_t) {
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
  PyObject* borders = list_of(taken.borders, [](const Border& b) { return Py_BuildValue("(Li)", (long long)b.mark, b.phase); });
  const std::vector<int64_t> before(taken.phases, taken.phases + kPhases);
  PyObject* phases = list_of(before, [](int64_t nanoseconds) { return PyLong_FromLongLong(nanoseconds); });
  return Py_BuildValue("(NNNN)", sums, launches, borders, phases);
}

// live_bytes() -> of the arrays that kernels made.
PyObject* count_live_bytes(const void*, PyObject* const*, Py_ssize_t) { return PyLong_FromLongLong(live_bytes()); }

}  // namespace

void bind_ledger(PyObject* module) {
  define(module, "set_phase", set_phase, nullptr);
  define(module, "set_scope", set_scope, nullptr);
  define(module, "label", label, nullptr);
  define(module, "ledger_begin", ledger_begin, nullptr);
  define(module, "ledger_end", ledger_end, nullptr);
  define(module, "ledger_take", ledger_take, nullptr);
  define(module, "live_bytes", count_live_bytes, nullptr);
}

}  // namespace pb
