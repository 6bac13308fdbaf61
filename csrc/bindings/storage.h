// The functions that depend on the class of the arrays that hold a device's memory, NumPy's or CuPy's, and helpers for these.
#pragma once
#include "bindings/arrays.h"

namespace pb {

bool prepare_storage();  // must be called once; returns false with a Python exception set

#if defined(PB_CUDA)
// Starts a call, before its arguments are read. Later view_of() throws Refused if the call's arrays are on different devices.
void begin_call();
void register_device_arrays(PyObject* type);  // sets the class of the arrays that kernels accept and return
#endif

// Sets `out` to the dtype of a NumPy type number. Returns false if kernels do not support it.
bool to_dtype(int number, DType& out);
// Returns a borrowed reference to NumPy's dtype object.
PyObject* descriptor_of(DType dtype);

}  // namespace pb
