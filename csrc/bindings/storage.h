// What arrays.h needs to know of the arrays that hold a device's memory.
#pragma once
#include "bindings/arrays.h"

namespace pb {

bool prepare_storage();  // once; false with a Python exception set

// The element type of a NumPy type number; false where kernels have none.
bool to_dtype(int number, DType& out);
// NumPy's dtype, a borrowed reference.
PyObject* descriptor_of(DType dtype);

}  // namespace pb
