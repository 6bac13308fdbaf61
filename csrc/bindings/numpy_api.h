// NumPy's C functions: one table of them for all files of a module, filled where PB_NUMPY_TABLE is defined.
#pragma once
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL pb_numpy_api
#if !defined(PB_NUMPY_TABLE)
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
