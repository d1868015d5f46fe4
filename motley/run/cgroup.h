#ifndef MOTLEY_RUN_CGROUP_H_
#define MOTLEY_RUN_CGROUP_H_

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace motley::run {

// The folders of this process's cgroup that may hold what the kernel knows about `controller`
// ("cpu", "memory"), and of all cgroups above it, which bind it as well: version 2, and the
// controller's hierarchy of version 1. Those of a container that sees only a part of the tree do
// not all exist. `root` is "/" but in tests.
std::vector<std::filesystem::path> CgroupFolders(const std::filesystem::path& root,
                                                 std::string_view controller);

// The number behind `name` in a file of "name number" lines; negative when there is none.
double CgroupField(const std::filesystem::path& file, const std::string& name);

}  // namespace motley::run

#endif  // MOTLEY_RUN_CGROUP_H_
