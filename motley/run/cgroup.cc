#include "motley/run/cgroup.h"

#include <fmt/core.h>

#include <fstream>
#include <sstream>

namespace motley::run {

std::vector<std::filesystem::path> CgroupFolders(const std::filesystem::path& root,
                                                 std::string_view controller) {
  std::vector<std::filesystem::path> folders;
  // From `below` up to the mount.
  const auto add = [&](const std::filesystem::path& mount, std::filesystem::path below) {
    for (; !below.empty(); below = below.parent_path()) folders.push_back(mount / below);
    folders.push_back(mount);
  };
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::filesystem::path below =
        std::filesystem::path(line.substr(second + 1)).relative_path();
    const std::filesystem::path mounts = root / "sys/fs/cgroup";
    if (controllers.empty()) add(mounts, below);
    const std::string listed = fmt::format(",{},", controllers);
    if (listed.find(fmt::format(",{},", controller)) != std::string::npos) {
      add(mounts / controller, below);
      if (controllers != controller) add(mounts / controllers, below);
    }
  }
  return folders;
}

double CgroupField(const std::filesystem::path& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    double value = 0.0;
    if (words >> key >> value && key == name) return value;
  }
  return -1.0;
}

}  // namespace motley::run
