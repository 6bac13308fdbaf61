// Result owns the array that a call is going to return, and releases it if an exception is thrown first.
#pragma once
#include <optional>

#include "bindings/arrays.h"

namespace pb {

class Result {
 public:
  Result(DType dtype, int ndim, const int64_t* shape, View& out) : array_(new_array(dtype, ndim, shape, out)) {}
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  ~Result() { Py_XDECREF(array_); }
  PyObject* hand_out() {
    PyObject* array = array_;
    array_ = nullptr;
    return array;
  }

 private:
  PyObject* array_;
};

// The operand of a launch that is not there.
inline View absent(DType dtype) { return flat_view(nullptr, dtype, 0); }

// A gradient with the dtype and the first `ndim` axes of `like`. No array is allocated if the gradient is not needed.
struct Gradient {
  std::optional<Result> array;
  Gradient(PyObject* needed, const View& like, int ndim, View& out) {
    out = absent(like.dtype);
    if (to_bool(needed)) array.emplace(like.dtype, ndim, like.shape, out);
  }
  PyObject* hand_out() {
    if (array) return array->hand_out();
    Py_RETURN_NONE;
  }
};

// Returns a tuple of Results and Gradients.
template <class... R> PyObject* hand_out_all(R&... results) {
  PyObject* tuple = PyTuple_New(sizeof...(R));
  if (!tuple) throw PythonError{};
  Py_ssize_t k = 0;
  (PyTuple_SET_ITEM(tuple, k++, results.hand_out()), ...);
  return tuple;
}

// Reads the items of a list, tuple or other sequence, and keeps a reference to it.
class Items {
 public:
  explicit Items(PyObject* object) : items_(PySequence_Fast(object, "expected a list")) {
    if (!items_) throw PythonError{};
  }
  Items(const Items&) = delete;
  ~Items() { Py_DECREF(items_); }
  Py_ssize_t size() const { return PySequence_Fast_GET_SIZE(items_); }
  PyObject* operator[](Py_ssize_t i) const { return PySequence_Fast_GET_ITEM(items_, i); }

 private:
  PyObject* items_;
};

// Returns a new reference: to the object that a weak reference refers to, null if that is dead, or to any other object itself.
inline PyObject* referent(PyObject* object) {
  if (!PyWeakref_CheckRefExact(object)) return Py_NewRef(object);
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  if (PyWeakref_GetRef(object, &found) < 0) throw PythonError{};
  return found;
#else
  PyObject* found = PyWeakref_GET_OBJECT(object);
  return found == Py_None ? nullptr : Py_NewRef(found);
#endif
}

inline void expect_count(Py_ssize_t count, Py_ssize_t wanted) {
  if (count != wanted) throw Refused{"wrong number of arguments"};
}

// Returns the axis as a number from 0 to ndim - 1. A negative axis counts from the end.
inline int axis_or_refuse(PyObject* object, int ndim) {
  const int64_t axis = to_int(object);
  if (axis < -ndim || axis >= ndim) throw Refused{"no such axis"};
  return int(axis < 0 ? axis + ndim : axis);
}

// Returns some of `ndim` axes as bits.
inline int64_t to_mask(PyObject* object, int ndim) {
  int64_t axes[kMaxDims], mask = 0;
  const int named = to_ints(object, axes, kMaxDims);
  for (int k = 0; k < named; ++k) {
    if (axes[k] < 0 || axes[k] >= ndim || (mask >> axes[k] & 1)) throw Refused{"axes that are not those of x, once each"};
    mask |= int64_t(1) << axes[k];
  }
  return mask;
}

}  // namespace pb
