// Finds the folders of cgroup.h from the lines of /proc/self/cgroup, "number:controllers:path".
#include "cpu/cgroup.h"

#include <fstream>

namespace pb::cpu {
namespace {

// True if `controllers`, a comma-separated list, contains `controller`. Version 2 lists none.
bool lists(const std::string& controllers, const std::string& controller) {
  if (controller.empty()) return controllers.empty();
  return ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
}

}  // namespace

std::vector<std::string> cgroup_folders(const std::string& root, const std::string& controller) {
  const std::string top = root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
  std::vector<std::string> folders{top};
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || !lists(line.substr(first + 1, second - first - 1), controller)) continue;
    const std::string group = line.substr(second + 1);
    for (size_t end = group.find('/', 1); group.size() > 1; end = group.find('/', end + 1)) {
      folders.push_back(top + group.substr(0, end));
      if (end == std::string::npos) break;
    }
  }
  return folders;
}

}  // namespace pb::cpu
