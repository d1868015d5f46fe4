#ifndef MOTLEY_APPS_MOTLEY_COMMANDS_H_
#define MOTLEY_APPS_MOTLEY_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apps/motley/console.h"
#include "motley/base/status.h"

namespace motley::app {

// Exit codes of the program.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
// The run ended in good order, with a checkpoint, before its goal was reached.
inline constexpr int kExitTargetNotReached = 4;

// One function per verb. Each writes its answer to standard output and returns the exit code, or
// the failure that the caller prints.

struct TrainArgs {
  std::string job;                // a job file; empty: the default job
  std::vector<std::string> sets;  // section.key=value
  std::string out;
  std::string resume;  // a run directory or "auto"
  bool dry_run = false;
  bool help_keys = false;
  bool json = false;
};
base::Result<int> Train(const TrainArgs& args, const Environment& environment);

struct ModelsArgs {
  bool json = false;
};
base::Result<int> Models(const ModelsArgs& args);

struct DataGetArgs {
  std::string name;
  bool json = false;
};
base::Result<int> DataGet(const DataGetArgs& args, const Environment& environment);

struct ExportArgs {
  std::string run;
  std::string onnx, safetensors;  // files to write; at least one
  bool json = false;
};
base::Result<int> Export(const ExportArgs& args);

struct BenchArgs {
  std::string model = "resnet18";
  std::int64_t batch = 32;
  std::string input;         // empty: the shape that the network's authors used
  std::int64_t classes = 0;  // 0: likewise
  int threads = 0;           // 0: every core this process may use
  double seconds = 10.0;
  std::string save;         // a folder for the initial weights and the batch; empty: not kept
  bool no_dropout = false;  // every dropout with probability 0
  bool profile = false;
  bool explain = false;
  bool json = false;
};
base::Result<int> Bench(const BenchArgs& args, const Environment& environment);

struct DoctorArgs {
  bool json = false;
};
base::Result<int> Doctor(const DoctorArgs& args, const Environment& environment);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_COMMANDS_H_
