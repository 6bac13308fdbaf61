// Includes NumPy's C API. All files of a module share one table of its functions; the file that defines PB_NUMPY_TABLE fills it.
#pragma once
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL pb_numpy_api
#if !defined(PB_NUMPY_TABLE)
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
