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
  std::size_t row = 0;  // of a section that may stand there several times
  std::string name;
  Value value;
  std::string place;  // "job.toml:4:9"
};

struct TomlFile {
  std::vector<TomlEntry> entries;                             // in the order of the file
  std::vector<std::pair<std::string, std::size_t>> sections;  // how often each stands in it
};

// Refuses what is not TOML, unknown sections and sections that are not tables, with
// file:line:column.
base::Result<TomlFile> ParseToml(std::string_view text, const std::string& origin);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_JOB_TOML_H_
