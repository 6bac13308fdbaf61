// The thread's door, seen from Python: phase, scope, and the ledger of what was launched.
#include <memory>

#include "bindings/tables.h"

namespace pb {
namespace {

thread_local std::unique_ptr<Ledger> own_ledger;

// set_phase(number) -> the number before. Launches from now on are charged to it.
PyObject* set_phase(const void*, PyObject* const* args, Py_ssize_t) {
  const int before = door.charge.phase;
  door.charge.phase = int(to_int(args[0]));
  return PyLong_FromLong(before);
}

PyObject* set_scope(const void*, PyObject* const* args, Py_ssize_t) {
  const int before = door.charge.scope;
  door.charge.scope = int(to_int(args[0]));
  return PyLong_FromLong(before);
}

// ledger_begin(): this thread's launches are recorded from now on. ledger_end() stops that.
PyObject* ledger_begin(const void*, PyObject* const*, Py_ssize_t) {
  if (!own_ledger) own_ledger = std::make_unique<Ledger>();
  door.ledger = own_ledger.get();
  Py_RETURN_NONE;
}
PyObject* ledger_end(const void*, PyObject* const*, Py_ssize_t) {
  door.ledger = nullptr;
  Py_RETURN_NONE;
}

// ledger_take() -> the records so far, removed from the ledger: tuples (kernel, phase, scope, flops, matmul_flops,
// executed_flops, special_ops, bytes_read, bytes_written, begin_ns, end_ns).
PyObject* ledger_take(const void*, PyObject* const*, Py_ssize_t) {
  const size_t count = own_ledger ? own_ledger->records.size() : 0;
  PyObject* list = PyList_New(Py_ssize_t(count));
  for (size_t i = 0; list && i < count; ++i) {
    const Record& r = own_ledger->records[i];
    const Cost& c = r.cost;
    PyObject* row = Py_BuildValue("(siiLLLLLLLL)", r.kernel, r.phase, r.scope, (long long)c.flops, (long long)c.matmul_flops,
                                  (long long)c.executed_flops, (long long)c.special_ops, (long long)c.bytes_read,
                                  (long long)c.bytes_written, (long long)time_of(r.begin), (long long)time_of(r.end));
    if (!row) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, Py_ssize_t(i), row);
  }
  if (own_ledger) own_ledger->records.clear();
  return list;
}

}  // namespace

void bind_ledger(PyObject* module) {
  define(module, "set_phase", set_phase, nullptr);
  define(module, "set_scope", set_scope, nullptr);
  define(module, "ledger_begin", ledger_begin, nullptr);
  define(module, "ledger_end", ledger_end, nullptr);
  define(module, "ledger_take", ledger_take, nullptr);
}

}  // namespace pb
