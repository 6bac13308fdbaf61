// Finds the names and the static shared variables of kernels in the symbol table of the program.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cudasim {

struct Span {
  char* begin;
  size_t bytes;
};

std::string name_of(const void* kernel);  // the demangled name, or "a kernel" if symbols have been stripped

// Returns the calling OS thread's copies of all static shared variables in the program or library that contains the kernel. C++ has
// no list of them, but they are the thread-local variables of functions that have no initializer. Empty if symbols have been
// stripped.
const std::vector<Span>& shared_variables(const void* kernel);

size_t own_shared_bytes(const void* kernel);  // bytes of the variables that the kernel declares, without functions it calls

}  // namespace cudasim
