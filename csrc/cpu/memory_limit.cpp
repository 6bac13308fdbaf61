// Reads the limits of memory_limit.h from the system.
#include "cpu/memory_limit.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "cpu/cgroup.h"

namespace pb::cpu {
namespace {

void lower(MemoryLimit& limit, int64_t bytes, const std::string& source) {
  if (bytes < limit.bytes) limit = {bytes, source};
}

// A missing file sets no limit, nor does the word "max". Version 1 writes a number near 2^63 for no limit.
void lower_by_file(MemoryLimit& limit, const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return;
  char* end = nullptr;
  const long long bytes = std::strtoll(text.c_str(), &end, 10);
  if (end != text.c_str() && bytes >= 0) lower(limit, bytes, path);
}

void lower_by_resource(MemoryLimit& limit, int resource, const char* name) {
  rlimit found{};
  if (getrlimit(resource, &found) != 0 || found.rlim_cur == RLIM_INFINITY || found.rlim_cur > rlim_t(INT64_MAX)) return;
  lower(limit, int64_t(found.rlim_cur), name);
}

}  // namespace

MemoryLimit memory_limit(const std::string& root) {
  MemoryLimit limit{INT64_MAX, "nothing known"};
  const int64_t physical = int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)};
  if (physical > 0) lower(limit, physical, "physical memory");
  for (const std::string& folder : cgroup_folders(root, "")) {
    lower_by_file(limit, folder + "/memory.max");   // above this limit the kernel kills the process
    lower_by_file(limit, folder + "/memory.high");  // above this limit the kernel stops the process, to reclaim memory
  }
  for (const std::string& folder : cgroup_folders(root, "memory")) lower_by_file(limit, folder + "/memory.limit_in_bytes");
  lower_by_resource(limit, RLIMIT_AS, "RLIMIT_AS");
  lower_by_resource(limit, RLIMIT_DATA, "RLIMIT_DATA");
  return limit;
}

int64_t resident_bytes() noexcept {
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[128];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 0;
  text[length] = 0;
  char* rest = nullptr;
  std::strtoll(text, &rest, 10);  // the size of the address space, in pages; the resident pages follow
  return std::strtoll(rest, nullptr, 10) * int64_t{sysconf(_SC_PAGESIZE)};
}

}  // namespace pb::cpu
