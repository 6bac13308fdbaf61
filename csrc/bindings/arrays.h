// NumPy arrays as views, and back: the only header that knows both Python and View.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "launch/door.h"

namespace pb {

// A kernel does not take these arguments (dtype, layout, type of array…). Python's `except Refused` finds another way or
// says what is wrong in the user's words.
struct Refused {
  const char* why;
};
struct PythonError {};  // a Python exception is set
// An index outside its axis: `where` is its position in the flattened index.
struct BadIndex {
  int64_t where, index, length;
};

// Fills v from an ndarray. False where it is not one that kernels take.
bool view_of(PyObject* object, View& v);
View view_or_refuse(PyObject* object);

// Kernels of the hot path take and give pullback's tensors as well as arrays. register_tensors says what these are: the
// class to make, and all classes that hold their array (or number) in the slot "array".
void register_tensors(PyObject* tensor, PyObject* holders);
// The array (or number) of a tensor, a borrowed reference; anything else as it is. `held` becomes true for a tensor.
PyObject* unwrap(PyObject* object, bool& held);
// The array of a tensor (not of a Parameter or a view of one, which can change), a borrowed reference; anything else as it is.
PyObject* bare(PyObject* object);
// A tensor around the array, whose reference it takes.
PyObject* wrap(PyObject* array);

// A new C-contiguous array; `out` becomes its view.
PyObject* new_array(DType dtype, int ndim, const int64_t* shape, View& out);
// The bytes of such an array. Throws std::bad_alloc if there are more than an address reaches.
size_t bytes_of(DType dtype, int ndim, const int64_t* shape);
// An array of the same elements in other places; strides in bytes. Nobody can write to it.
PyObject* view_array(PyObject* array, int ndim, const int64_t* shape, const int64_t* stride);

// A contiguous NumPy array in the host's memory. Throws Refused for anything else.
View host_view_or_refuse(PyObject* object);

DType dtype_of(PyObject* numpy_dtype_or_array);
// Throws Refused beyond int64.
int64_t to_int(PyObject* object);
double to_real(PyObject* object);
bool to_bool(PyObject* object);
// A length, or a tuple or list of lengths or axes; returns how many. Throws std::bad_alloc beyond int64: no memory holds that.
int64_t to_length(PyObject* object);
int to_ints(PyObject* object, int64_t* out, int most);
// a + b. Throws std::bad_alloc beyond int64.
int64_t add_lengths(int64_t a, int64_t b);

// Runs the launch through the door, without the GIL where it is long enough to matter.
void run_released(const Launch& launch, int64_t work);

using Call = PyObject* (*)(const void* table, PyObject* const* args, Py_ssize_t count);
// Makes module.name a function that calls `call(table, args…)` and turns C++ exceptions into Python's.
void define(PyObject* module, const char* name, Call call, const void* table);

// Makes the C++ exception that is being handled Python's; `name` is whose it is.
void raise_current(const char* name);
// Calls of module.name with an array of this type go to `function` instead: that of the module for another device.
void forward(const char* name, PyObject* function, PyObject* type);

bool prepare_arrays();  // once, before anything else; false with a Python exception set
void register_bfloat16(PyObject* dtype);

}  // namespace pb
