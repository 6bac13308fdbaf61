// Conversions between Python objects (arrays, tensors, numbers) and the types of launch/, and the definition of bound functions.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "launch/door.h"

namespace pb {

// Thrown if a kernel does not support the arguments (dtype, layout, type of array…). Python's `except Refused` then takes another
// path or explains the error in the user's terms.
struct Refused {
  const char* why;
};
struct PythonError {};  // a Python exception is set
// Thrown for an index outside its axis. `where` is the position of the index in the flattened array of indices.
struct BadIndex {
  int64_t where, index, length;
};

// Fills v from an array. Returns false if the object is not an array that kernels support. view_or_refuse() then throws Refused.
bool view_of(PyObject* object, View& v);
View view_or_refuse(PyObject* object);

// Functions on the hot path accept and return pullback's tensors as well as arrays. register_tensors() sets the class of the
// tensors that they return, and all classes that hold their array (or number) in a slot "array".
void register_tensors(PyObject* tensor, PyObject* holders);
// Returns a borrowed reference: to the array (or number) of a tensor, for which it sets `held`, or to any other object itself.
PyObject* unwrap(PyObject* object, bool& held);
// Returns a borrowed reference: to the array of a constant tensor, or to any other object itself. Parameters and views of them are
// not constant, because they can change.
PyObject* bare(PyObject* object);
// Returns a new tensor that holds the array. Steals the reference to the array.
PyObject* wrap(PyObject* array);

// Returns a new, uninitialized, C-contiguous array and sets `out` to its view.
PyObject* new_array(DType dtype, int ndim, const int64_t* shape, View& out);
// Returns the bytes of a C-contiguous array. Throws std::bad_alloc if their number exceeds int64.
size_t bytes_of(DType dtype, int ndim, const int64_t* shape);
// Returns a view of the array with this shape and these strides (in bytes). It is read-only in NumPy; CuPy has no such flag.
PyObject* view_array(PyObject* array, int ndim, const int64_t* shape, const int64_t* stride);

// Returns the view of a C-contiguous NumPy array in host memory. Throws Refused for any other object.
View host_view_or_refuse(PyObject* object);

DType dtype_of(PyObject* numpy_dtype_or_array);
// Throws Refused if the integer exceeds int64.
int64_t to_int(PyObject* object);
double to_real(PyObject* object);
bool to_bool(PyObject* object);
// Convert a length, or a tuple or list of at most `most` lengths or axes; to_ints() returns their number. Both throw std::bad_alloc
// for a length above the range of int64, because no memory is that large.
int64_t to_length(PyObject* object);
int to_ints(PyObject* object, int64_t* out, int most);
// Returns a + b. Throws std::bad_alloc if the sum exceeds int64.
int64_t add_lengths(int64_t a, int64_t b);

// Runs the launch as run() does. Releases the GIL meanwhile if `work`, roughly the flops of the launch, makes that worthwhile.
void run_released(const Launch& launch, int64_t work);

using Call = PyObject* (*)(const void* table, PyObject* const* args, Py_ssize_t count);
// Defines module.name as a function that calls `call(table, args…)` and converts C++ exceptions into Python exceptions. doc: null, or
// its docstring, which must live as long as the module.
void define(PyObject* module, const char* name, Call call, const void* table, const char* doc = nullptr);

// Defines a function with the kernel's name, unless the kernel is {}: then the backend lacks it, and Python takes another path.
inline void define(PyObject* module, const Kernel& kernel, Call call, const void* table = nullptr, const char* doc = nullptr) {
  if (kernel.run) define(module, kernel.name, call, table, doc);
}

// Converts the C++ exception being handled into a Python exception; `name` is the function that messages name.
void raise_current(const char* name);
// Makes the bound function `name` call `function`, which is the same op in another device's module, if an argument has this array
// type.
void forward(const char* name, PyObject* function, PyObject* type);

bool prepare_arrays();  // must be called once, before anything else; returns false with a Python exception set
void register_bfloat16(PyObject* dtype);

}  // namespace pb
