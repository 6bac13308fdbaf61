// Calls by which the storage notifies recordings of plans of memory that is allocated, released, or about to be used.
#pragma once
#include <atomic>

#include "bindings/arrays.h"

namespace pb {

extern std::atomic<int> recordings;  // the number of active recordings of all threads

bool recording();  // true if this thread records; the functions below need that, except tell_given_back()
// Notes that this thread allocated the memory of an array. The Buffer that owns it calls tell_given_back() when it is freed.
void tell_made(char* data, int64_t bytes);
void tell_given_back(char* data) noexcept;
// Notes that a coming launch uses an array. If its memory is not a block of the plan, the plan keeps a reference to the array.
void tell_seen(PyObject* owner, const View& v);
// Makes the plan keep a reference to another owner of memory that a coming launch uses.
void tell_kept(PyObject* owner);

}  // namespace pb
