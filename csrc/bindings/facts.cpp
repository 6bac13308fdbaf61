// Compares what a recording of a captured function read in Python with what stands there now, and watches which Python functions
// run while one is recorded. Only C code of the interpreter runs here, never a property or another method of the user's.
//
// The facts are nested tuples, which the garbage collector sees (replays/facts/facts.py makes them):
//   group: (read, holder, fact, fact, …)    fact: (path, how, expected)
// `holder` is a weak reference if the object takes one. `path` is a key of the holder, or a tuple of it and further keys of the
// dicts, lists, tuples and arrays below. An object has under a key its own attribute or else, unbound, that of its class, and under
// the key None the names of its own attributes.
#include <unordered_set>

#include "bindings/gil.h"
#include "bindings/numpy_api.h"
#include "bindings/result.h"
#include "bindings/tables.h"

namespace pb {
namespace {

enum Read { kAttribute, kName, kCell, kItem, kSlot, kEntry };     // as in replays/facts/facts.py
enum How { kSame, kReferent, kValue, kItems, kLength, kAbsent };  // as in replays/facts/facts.py

// A reference that is owned, or none.
struct Owned {
  PyObject* object;
  explicit Owned(PyObject* object = nullptr) : object(object) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object); }
  void set(PyObject* other) {
    PyObject* before = object;
    object = other;
    Py_XDECREF(before);
  }
};

bool same_bytes(PyObject* a, PyObject* b) {
  const Owned first(PyObject_CallMethod(a, "tobytes", nullptr)), second(PyObject_CallMethod(b, "tobytes", nullptr));
  if (!first.object || !second.object) throw PythonError{};
  return PyObject_RichCompareBool(first.object, second.object, Py_EQ) == 1;
}

// True if two numbers or strings have one type and the same bits.
bool same_value(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) {
    const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (PyComplex_CheckExact(a)) {
    const Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (PyLong_CheckExact(a) || PyUnicode_CheckExact(a) || PyBytes_CheckExact(a))
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
  return same_bytes(a, b);  // a number of NumPy
}

bool holds(PyObject* value, int how, PyObject* expected);

// True if a container has the items of a snapshot: (its type, (how, expected, …)), with a key before each `how` for a dict. A container
// with attributes of its own has them as a third part, (how, expected).
bool same_items(PyObject* container, PyObject* snapshot) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(container)) != PyTuple_GET_ITEM(snapshot, 0)) return false;
  if (PyTuple_GET_SIZE(snapshot) > 2) {
    const Owned attributes(PyObject_GenericGetDict(container, nullptr));
    PyObject* before = PyTuple_GET_ITEM(snapshot, 2);
    if (!holds(attributes.object, int(PyLong_AsLong(PyTuple_GET_ITEM(before, 0))), PyTuple_GET_ITEM(before, 1))) return false;
  }
  PyObject* items = PyTuple_GET_ITEM(snapshot, 1);
  const Py_ssize_t size = PyTuple_GET_SIZE(items);
  if (PyDict_Check(container)) {
    if (PyDict_GET_SIZE(container) * 3 != size) return false;
    Py_ssize_t next = 0, k = 0;
    const auto same = [&](PyObject* key, PyObject* value) {
      PyObject* before = PyTuple_GET_ITEM(items, k);
      if (key != before && !((PyUnicode_CheckExact(key) || PyLong_CheckExact(key)) && same_value(key, before))) return false;
      k += 3;
      return holds(value, int(PyLong_AsLong(PyTuple_GET_ITEM(items, k - 2))), PyTuple_GET_ITEM(items, k - 1));
    };
    if (PyODict_Check(container)) {  // its order stands beside the dict
      const Owned keys(PyODict_Type.tp_iter(container));
      for (;;) {
        const Owned key(PyIter_Next(keys.object));
        if (!key.object) return k == size;
        if (k == size || !same(key.object, PyDict_GetItemWithError(container, key.object))) return false;
      }
    }
    for (PyObject *key, *value; PyDict_Next(container, &next, &key, &value);) {
      if (!same(key, value)) return false;
    }
    return true;
  }
  const Items now(container);  // a deque is read by its iterator, as a list
  if (now.size() * 2 != size) return false;
  for (Py_ssize_t k = 0; k < now.size(); ++k) {
    if (!holds(now[k], int(PyLong_AsLong(PyTuple_GET_ITEM(items, 2 * k))), PyTuple_GET_ITEM(items, 2 * k + 1))) return false;
  }
  return true;
}

// True if the value (null if there is none) is as expected.
bool holds(PyObject* value, int how, PyObject* expected) {
  if (how == kAbsent || !value) return how == kAbsent && !value;
  if (value == expected) return true;
  switch (how) {
    case kReferent: return Owned(referent(expected)).object == value;
    case kValue: return same_value(value, expected);
    case kItems: return same_items(value, expected);
    case kLength: {
      const Owned before(referent(PyTuple_GET_ITEM(expected, 0)));
      return value == before.object && PyObject_Size(value) == PyLong_AsSsize_t(PyTuple_GET_ITEM(expected, 1));
    }
    default: return false;
  }
}

// Returns an item of a dict, list, tuple or array of NumPy, or null.
PyObject* item(PyObject* container, PyObject* key) {
  if (PyArray_CheckExact(container)) return PyObject_GetItem(container, key);
  if (PyDict_Check(container)) return Py_XNewRef(PyDict_GetItemWithError(container, key));
  if (!PyList_Check(container) && !PyTuple_Check(container)) return nullptr;
  if (!PyLong_Check(key)) return nullptr;
  const Py_ssize_t size = Py_SIZE(container);
  Py_ssize_t k = PyLong_AsSsize_t(key);
  k += k < 0 ? size : 0;
  if (k < 0 || k >= size) return nullptr;
  return Py_NewRef(PyList_Check(container) ? PyList_GET_ITEM(container, k) : PyTuple_GET_ITEM(container, k));
}

// Returns what a holder has under a key, or null.
PyObject* read_one(int read, PyObject* holder, PyObject* attributes, PyObject* key) {
  switch (read) {
    case kAttribute: {
      if (!attributes) return nullptr;
      if (key == Py_None) return PyDict_Keys(attributes);
      PyObject* own = PyDict_GetItemWithError(attributes, key);
      return Py_XNewRef(own ? own : _PyType_Lookup(Py_TYPE(holder), key));
    }
    case kName: return Py_XNewRef(PyDict_GetItemWithError(holder, key));
    case kCell: {  // a variable of an enclosing function, by its number
      PyObject* cells = PyFunction_Check(holder) ? PyFunction_GET_CLOSURE(holder) : nullptr;
      const Py_ssize_t k = PyLong_AsSsize_t(key);
      return cells && k < PyTuple_GET_SIZE(cells) ? PyCell_Get(PyTuple_GET_ITEM(cells, k)) : nullptr;
    }
    case kItem: return Py_NewRef(holder);
    case kSlot: return Py_TYPE(key)->tp_descr_get(key, holder, reinterpret_cast<PyObject*>(Py_TYPE(holder)));
    default: return Py_XNewRef(_PyType_Lookup(reinterpret_cast<PyTypeObject*>(holder), key));
  }
}

PyObject* read_path(int read, PyObject* holder, PyObject* attributes, PyObject* path) {
  if (!PyTuple_CheckExact(path)) return read_one(read, holder, attributes, path);
  Owned found(read_one(read, holder, attributes, PyTuple_GET_ITEM(path, 0)));
  for (Py_ssize_t k = 1; k < PyTuple_GET_SIZE(path) && found.object; ++k)
    found.set(item(found.object, PyTuple_GET_ITEM(path, k)));
  return Py_XNewRef(found.object);
}

// facts_changed(groups) -> None if all facts hold, otherwise (number of the group, number of the fact) of the first that does not.
PyObject* facts_changed(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  for (Py_ssize_t g = 0; g < PyTuple_GET_SIZE(args[0]); ++g) {
    PyObject* group = PyTuple_GET_ITEM(args[0], g);
    const int read = int(PyLong_AsLong(PyTuple_GET_ITEM(group, 0)));
    const Owned holder(referent(PyTuple_GET_ITEM(group, 1)));
    const Owned attributes(holder.object && read == kAttribute ? PyObject_GenericGetDict(holder.object, nullptr) : nullptr);
    for (Py_ssize_t f = 2; f < PyTuple_GET_SIZE(group); ++f) {
      PyObject* fact = PyTuple_GET_ITEM(group, f);
      const Owned now(holder.object ? read_path(read, holder.object, attributes.object, PyTuple_GET_ITEM(fact, 0)) : nullptr);
      if (PyErr_Occurred()) PyErr_Clear();  // an attribute or a slot that was deleted
      if (!holder.object || !holds(now.object, int(PyLong_AsLong(PyTuple_GET_ITEM(fact, 1))), PyTuple_GET_ITEM(fact, 2)))
        return Py_BuildValue("(nn)", g, f - 2);
    }
  }
  Py_RETURN_NONE;
}

// ---- the Python functions that run

// The watch of a thread. `skipped` are code objects whose functions need no call of `seen`.
struct Watch {
  PyObject* seen;  // owned
  Py_tracefunc outer;
  PyObject* outer_argument;  // owned, or null
};
thread_local Watch watch{};
std::unordered_set<PyObject*> skipped;  // owned; the GIL protects it

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* argument) {
  if (what == PyTrace_CALL) {
    const Owned code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    if (!skipped.count(code.object)) {
      PyObject* answer = nullptr;
      try {
        answer = PyObject_CallOneArg(watch.seen, reinterpret_cast<PyObject*>(frame));
      } catch (ThreadEnd&) {
        sleep_until_exit();
      }
      if (!answer) return -1;
      if (answer == Py_False) skipped.insert(Py_NewRef(code.object));
      Py_DECREF(answer);
    }
  }
  return watch.outer ? watch.outer(watch.outer_argument, frame, what, argument) : 0;
}

// watch_calls(seen) calls seen(frame) whenever a Python function begins in this thread, beside a profiler that is there already. If
// it returns False, it is never asked about this code again. watch_calls(None) ends that, and returns False if another profiler has
// taken the place of the watch meanwhile.
PyObject* watch_calls(const void*, PyObject* const* args, Py_ssize_t count) {
  expect_count(count, 1);
  PyThreadState* thread = PyThreadState_Get();
  const bool ours = thread->c_profilefunc == on_event;
  if (args[0] != Py_None && ours) {  // an interrupted recording has left its watch
    PyObject* before = watch.seen;
    watch.seen = Py_NewRef(args[0]);
    Py_XDECREF(before);
  } else if (args[0] != Py_None) {
    watch = {Py_NewRef(args[0]), thread->c_profilefunc, Py_XNewRef(thread->c_profileobj)};
    PyEval_SetProfile(on_event, nullptr);
  } else if (watch.seen) {
    if (ours) PyEval_SetProfile(watch.outer, watch.outer_argument);
    Py_CLEAR(watch.seen);
    Py_CLEAR(watch.outer_argument);
    watch.outer = nullptr;
  }
  if (PyErr_Occurred()) throw PythonError{};
  return PyBool_FromLong(ours);
}

}  // namespace

void bind_facts(PyObject* module) {
  define(module, "facts_changed", facts_changed, nullptr);
  define(module, "watch_calls", watch_calls, nullptr);
}

}  // namespace pb
