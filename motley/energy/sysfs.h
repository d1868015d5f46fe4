#ifndef MOTLEY_ENERGY_SYSFS_H_
#define MOTLEY_ENERGY_SYSFS_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/status.h"

namespace motley::energy {

// The one line of a sysfs file, without white space around it. A file that only others may read
// fails with kUnavailable and how to change that.
base::Result<std::string> ReadLine(const std::filesystem::path& file);

// The one whole number of a sysfs file.
base::Result<std::int64_t> ReadNumber(const std::filesystem::path& file);

// Entries of `folder` whose names are `prefix`, digits, `suffix`, in the order of the digits. None
// when there is no such folder.
std::vector<std::filesystem::path> Numbered(const std::filesystem::path& folder,
                                            std::string_view prefix, std::string_view suffix);

}  // namespace motley::energy

#endif  // MOTLEY_ENERGY_SYSFS_H_
