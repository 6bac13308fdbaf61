// Notifies the recording of a plan of memory that storage allocates, frees, and passes to launches.
#pragma once
#include <atomic>

#include "bindings/arrays.h"

namespace pb {

extern std::atomic<int> recordings;  // the number of recordings that run, in all threads

bool recording();  // true if a recording runs in this thread
// Notes that this thread allocated the memory of an array. The Buffer that owns it calls on_free() when it is freed.
void on_allocate(char* data, int64_t bytes);
void on_free(char* data) noexcept;
// Notes that a launch is about to use v. The plan keeps a reference to its owner unless the recording allocated the memory itself.
void on_operand(PyObject* owner, const View& v);
// Lets the plan keep a reference to another owner of memory.
void keep_alive(PyObject* owner);

}  // namespace pb
