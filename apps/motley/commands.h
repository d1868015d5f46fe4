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
// The coordinator cannot be reached, and that for as long as was to be tried.
inline constexpr int kExitLostCoordinator = 3;
// The run ended in good order, with a checkpoint, before its goal was reached.
inline constexpr int kExitTargetNotReached = 4;

// One function per verb. Each writes its answer to standard output and returns the exit code, or
// the failure that the caller prints.

// What names a run: of `train` and `serve`.
struct RunArgs {
  std::string job;                // a job file; empty: the default job
  std::vector<std::string> sets;  // section.key=value
  std::string out;
  std::string resume;          // a run directory or "auto"
  std::string sysfs = "/sys";  // where this machine's meters are; tests have their own
};

struct TrainArgs {
  RunArgs run;
  bool dry_run = false;
  bool help_keys = false;
  bool json = false;
};
base::Result<int> Train(const TrainArgs& args, const Environment& environment);

struct SimulateArgs {
  RunArgs run;
  bool time_only = false;  // no gradients
  bool predict = false;    // no run at all
  bool json = false;
};
base::Result<int> Simulate(const SimulateArgs& args, const Environment& environment);

struct ServeArgs {
  RunArgs run;
  std::string listen;  // HOST:PORT; empty: where the run listened before, or every address
  double token_hours = 168.0;
  std::string token_file;  // for the token; empty: it is only printed
  bool insecure = false;
  bool insecure_anywhere = false;
  bool json = false;
};
base::Result<int> Serve(const ServeArgs& args, const Environment& environment);

// Where a coordinator is, and what lets one in.
struct CoordinatorArgs {
  std::string address;            // HOST[:PORT]
  std::string token, token_file;  // neither: MOTLEY_TOKEN
};

struct JoinArgs {
  CoordinatorArgs coordinator;
  std::string name;
  int threads = 0;  // 0: every core this process may use
  std::string kind = "native";
  std::vector<double> cores;
  double speed = 1.0;
  double watts_idle = -1.0, watts_busy = -1.0;  // negative: not given
  std::string private_data;
  std::string data;  // a dataset as in a job file, a folder or an archive; empty: as the job says
  double retry_seconds = 120.0;
  bool json = false;
};
base::Result<int> Join(const JoinArgs& args, const Environment& environment);

struct StatusArgs {
  CoordinatorArgs coordinator;
  bool json = false;
};
base::Result<int> ShowStatus(const StatusArgs& args, const Environment& environment);

struct TokenArgs {
  std::string run;  // the run directory
  std::string id;   // to revoke
  double hours = 168.0;
  bool json = false;
};
base::Result<int> NewToken(const TokenArgs& args);
base::Result<int> ListTokens(const TokenArgs& args);
base::Result<int> RevokeToken(const TokenArgs& args);

struct WhyArgs {
  std::string run;  // a run directory; empty: the newest below runs/
  bool json = false;
};
base::Result<int> Why(const WhyArgs& args);

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
