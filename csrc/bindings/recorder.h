// What storage tells a recording of a plan: memory that was made, given back, and looked at.
#pragma once
#include <atomic>

#include "bindings/arrays.h"

namespace pb {

extern std::atomic<int> recordings;  // that run, in all threads

bool recording();  // whether one runs in this thread
// An array's memory was made by this thread; a Buffer owns it, which tells when it is given back.
void tell_made(char* data, int64_t bytes);
void tell_given_back(char* data) noexcept;
// An array, or another owner of memory, is an operand of a launch to come: the plan keeps what it did not make.
void tell_seen(PyObject* owner, const View& v);
void tell_kept(PyObject* owner);

}  // namespace pb
