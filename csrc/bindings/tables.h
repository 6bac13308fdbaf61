// Functions that bind the ops of one family into a module, usually in a loop over the family's table. Each has its own source file.
#pragma once
#include "bindings/arrays.h"
#include "launch/signature.h"

namespace pb {

void bind_row(PyObject* module, const KernelRow& row);
void bind_signatures(PyObject* module);  // the kernels with signatures, of every family
void bind_elementwise(PyObject* module);
void bind_reduce(PyObject* module);
void bind_channel_norm(PyObject* module);
void bind_pool(PyObject* module);
void bind_matmul(PyObject* module);
void bind_conv(PyObject* module);
void bind_copy(PyObject* module);
void bind_index(PyObject* module);
void bind_sort(PyObject* module);
void bind_cumulative(PyObject* module);
void bind_segment(PyObject* module);
void bind_random(PyObject* module);
void bind_update(PyObject* module);
void bind_projection(PyObject* module);
void bind_recurrent(PyObject* module);
void bind_attention(PyObject* module);
void bind_linalg(PyObject* module);
void bind_ledger(PyObject* module);
void bind_recorder(PyObject* module);
void bind_facts(PyObject* module);

void bind_families(PyObject* module);  // calls all of the functions above

}  // namespace pb
