#ifndef MOTLEY_APPS_MOTLEY_DRY_RUN_H_
#define MOTLEY_APPS_MOTLEY_DRY_RUN_H_

#include <cstdio>
#include <string>

#include "apps/motley/job.h"
#include "apps/motley/prepare.h"

namespace motley::app {

// What a job would do: every value with where it came from, the network, the data, the steps.
struct DryRun {
  const ResolvedJob& resolved;
  const Prepared& prepared;
  std::string does_not_fit;  // of the devices' private samples; empty: all fits, or nobody can tell
};
void PrintDryRun(const DryRun& dry_run, std::FILE* out);
nlohmann::ordered_json DryRunJson(const DryRun& dry_run);

// Every key with its type, default and help.
void PrintKeys(std::FILE* out);
nlohmann::ordered_json KeysJson();

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_DRY_RUN_H_
