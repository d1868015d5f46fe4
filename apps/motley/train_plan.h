#ifndef MOTLEY_APPS_MOTLEY_TRAIN_PLAN_H_
#define MOTLEY_APPS_MOTLEY_TRAIN_PLAN_H_

#include <memory>
#include <optional>

#include "apps/motley/commands.h"
#include "apps/motley/job.h"
#include "apps/motley/prepare.h"
#include "apps/motley/progress.h"
#include "apps/motley/run_dir.h"
#include "motley/engine/device.h"
#include "motley/run/trainer.h"

namespace motley::app {

// Where runs go that no --out places elsewhere.
inline constexpr const char* kRuns = "runs";

// A run that is about to begin: checked, but with nothing written yet.
struct TrainPlan {
  ResolvedJob resolved;
  Prepared prepared;
  RunFiles files;
  bool restart = false;              // over the remains of a run that never reached a checkpoint
  bool time_only = false;            // on a virtual clock, without gradients: nothing is learnt
  std::filesystem::path sysfs;       // where this machine's meters are
  std::filesystem::path checkpoint;  // that `resumed` came from
  std::optional<run::TrainState> resumed;  // none: from fresh weights
};

struct PlanOptions {
  bool fetch = true;  // a missing named dataset; a dry run stands in for it
  // Whether to note what makes a resumed run differ in its last bits: of a run on one machine.
  bool note_rounding = true;
};

// Finds the run to resume, loads the job, opens and checks everything it names. Notes for the user
// go to `view`.
base::Result<TrainPlan> MakePlan(const RunArgs& args, const PlanOptions& options,
                                 const Environment& environment, ProgressView& view);

// Kernel choices are worth something on the kind of CPU that they were measured on, which the
// checkpoint names. Drops them when `cpu` is another, so that the device measures anew; true if so.
bool DropChoicesOfAnotherCpu(run::TrainState& state, const std::string& cpu);

// Makes the run directory and takes hold of it, unless somebody else worked in it meanwhile.
base::Result<RunLock> TakeRunDirectory(const TrainPlan& plan);

// Where the run stands: at its checkpoint, or at its beginning.
run::TrainState BeginningOf(const TrainPlan& plan);

base::Result<run::TrainOptions> MakeOptions(const TrainPlan& plan);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_TRAIN_PLAN_H_
