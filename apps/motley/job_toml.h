#ifndef MOTLEY_APPS_MOTLEY_JOB_TOML_H_
#define MOTLEY_APPS_MOTLEY_JOB_TOML_H_

#include <string>
#include <string_view>
#include <vector>

#include "apps/motley/job_keys.h"
#include "motley/base/status.h"

namespace motley::app {

// One `name = value` line of a job file, not yet checked against the keys.
struct TomlEntry {
  std::string section;  // empty for what stands above every section
  std::string name;
  Value value;
  std::string place;  // "job.toml:4:9"
};

struct TomlFile {
  std::vector<TomlEntry> entries;     // in the order of the file
  std::vector<std::string> sections;  // that stand in it, also without entries
};

// Refuses what is not TOML, unknown sections, sections that are not tables and more than one
// device, with file:line:column.
base::Result<TomlFile> ParseToml(std::string_view text, const std::string& origin);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_JOB_TOML_H_
