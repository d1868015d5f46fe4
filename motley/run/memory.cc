#include "motley/run/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "motley/run/cgroup.h"

namespace motley::run {
namespace {

// The number that the file begins with. "max" is none.
std::optional<double> FirstNumber(const std::filesystem::path& file) {
  std::ifstream in(file);
  double value = 0.0;
  if (!(in >> value) || value < 0.0) return std::nullopt;
  return value;
}

// What the names of version 2 are in version 1.
struct Names {
  const char *limit, *usage, *reclaimable;
};
constexpr Names kVersions[] = {
    {"memory.max", "memory.current", "inactive_file"},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}};

}  // namespace

double ResidentBytes(const std::filesystem::path& root) {
  std::ifstream in(root / "proc/self/statm");
  double total = 0.0, resident = 0.0;
  in >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double FreeBytes(const std::filesystem::path& root) {
  double bytes = std::numeric_limits<double>::infinity();
  std::ifstream in(root / "proc/meminfo");
  for (std::string key, unit; in >> key;) {
    double value = 0.0;
    in >> value;
    std::getline(in, unit);
    if (key == "MemAvailable:") bytes = 1024.0 * value;
  }
  const double resident = ResidentBytes(root);
  for (const std::filesystem::path& folder : CgroupFolders(root, "memory")) {
    for (const Names& names : kVersions) {
      const auto limit = FirstNumber(folder / names.limit);
      if (!limit) continue;
      const double reclaimable =
          std::max(0.0, CgroupField(folder / "memory.stat", names.reclaimable));
      // At least this process is in there, whatever the accounts say.
      const double used =
          std::max(FirstNumber(folder / names.usage).value_or(0.0) - reclaimable, resident);
      bytes = std::min(bytes, std::max(0.0, *limit - used));
    }
  }
  return bytes;
}

}  // namespace motley::run
