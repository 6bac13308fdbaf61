// Each family binds its ops in a file of its own, by a loop over its table.
#pragma once
#include "bindings/arrays.h"

namespace pb {

void bind_elementwise(PyObject* module);
void bind_reduce(PyObject* module);
void bind_rows(PyObject* module);
void bind_matmul(PyObject* module);
void bind_copy(PyObject* module);
void bind_index(PyObject* module);
void bind_sort(PyObject* module);
void bind_cumulative(PyObject* module);
void bind_segment(PyObject* module);
void bind_random(PyObject* module);
void bind_update(PyObject* module);
void bind_ledger(PyObject* module);
void bind_recorder(PyObject* module);

void bind_families(PyObject* module);  // all of the above

}  // namespace pb
