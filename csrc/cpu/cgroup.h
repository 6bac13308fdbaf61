// The control groups that this process belongs to. The limits of CPU time and memory are read from their folders.
#pragma once
#include <string>
#include <vector>

namespace pb::cpu {

// Returns the folders of this process's control group and of every group above it, the topmost first. A limit set in any of
// them applies to the process.
//
// controller: "memory" or another controller of cgroup version 1; "" for version 2, which has one tree for all controllers.
// root: the folder that contains proc/ and sys/, for tests; "" for those of the system.
//
// Not every folder need exist. A container may read in /proc the path that its group has on the host, but find its own group
// mounted at the top.
std::vector<std::string> cgroup_folders(const std::string& root, const std::string& controller);

}  // namespace pb::cpu
