// The memory that this process may use, and the memory that it uses.
#pragma once
#include <cstdint>
#include <string>

namespace pb::cpu {

struct MemoryLimit {
  int64_t bytes;       // INT64_MAX if nothing is known
  std::string source;  // what sets the limit: "physical memory", the file of a control group, "RLIMIT_AS" or "RLIMIT_DATA"
};

// Returns the least of the machine's physical memory, the limits of the process's control groups (versions 1 and 2) and its
// resource limits. root: as for cgroup_folders().
MemoryLimit memory_limit(const std::string& root = "");

// Returns the bytes of physical memory that this process occupies, or 0 if the system has no /proc/self/statm. Allocates
// nothing. Takes a few microseconds.
int64_t resident_bytes() noexcept;

}  // namespace pb::cpu
