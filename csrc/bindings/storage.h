// What arrays.h needs to know of the arrays that hold a device's memory.
#pragma once
#include "bindings/arrays.h"

namespace pb {

bool prepare_storage();  // once; false with a Python exception set

#if defined(PB_CUDA)
void begin_call();                            // before the arguments of a call are looked at: its arrays must be of one device
void register_device_arrays(PyObject* type);  // the class of the arrays that are taken and made
#endif

// The element type of a NumPy type number; false where kernels have none.
bool to_dtype(int number, DType& out);
// NumPy's dtype, a borrowed reference.
PyObject* descriptor_of(DType dtype);

}  // namespace pb
