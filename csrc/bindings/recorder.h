// Calls by which the storage notifies recordings of plans of memory that is allocated, released, or about to be used.
#pragma once
#include <atomic>

#include "bindings/arrays.h"

namespace pb {

extern std::atomic<int> recordings;  // the number of active recordings of all threads

bool recording();  // true if this thread records; the functions below need that, except on_free()
// Notes that this thread allocated the memory of an array. The Buffer that owns it calls on_free() when it is freed.
void on_allocate(char* data, int64_t bytes);
void on_free(char* data) noexcept;
// Notes that a coming launch uses an array. If its memory is not a block of the plan, the plan keeps a reference to the array.
void on_operand(PyObject* owner, const View& v);
// Notes, by a weak reference, a new tensor of this thread.
void on_tensor(PyObject* tensor);
// Makes the plan keep a reference to another owner of memory that a coming launch uses.
void keep_alive(PyObject* owner);

}  // namespace pb
