// Finds the names and the static shared variables of kernels in the symbol table of the program.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cudasim {

struct MemoryRange {
  char* begin;
  size_t bytes;
};

std::string name_of(const void* kernel);  // the demangled name, or "a kernel" if symbols have been stripped

// Static shared variables, as the calling OS thread sees them, of the program or library that holds the kernel.
// C++ tells neither their places nor their number, but they are the thread-local variables of functions that have no
// initializer. Empty where symbols have been stripped.
const std::vector<MemoryRange>& shared_variables(const void* kernel);

size_t own_shared_bytes(const void* kernel);  // bytes of the variables that the kernel declares, without functions it calls

}  // namespace cudasim
