#ifndef MOTLEY_APPS_MOTLEY_ACTIVE_RUN_H_
#define MOTLEY_APPS_MOTLEY_ACTIVE_RUN_H_

#include <memory>
#include <string>
#include <vector>

#include "apps/motley/progress.h"
#include "apps/motley/run_dir.h"
#include "apps/motley/train_plan.h"
#include "motley/base/status.h"
#include "motley/run/trainer.h"
#include "motley/telemetry/events.h"
#include "motley/telemetry/summary.h"

namespace motley::app {

// A run that has begun, whoever computes it: its directory is ours, its job is written, its events
// are open, and signals are noted.
class ActiveRun {
 public:
  // `command` is what goes on with the run when " --resume DIR" stands behind it: "motley train".
  // Plan and view outlive the run.
  static base::Result<std::unique_ptr<ActiveRun>> Begin(const TrainPlan& plan, std::string command,
                                                        ProgressView& view);

  // What a training loop tells, on its way to the view and the events.
  const run::Trainer::Hooks& hooks() const { return hooks_; }
  telemetry::EventWriter& events() { return *events_; }

  // What the workers and the wire add to the report of a run that has ended.
  struct Accounts {
    std::int64_t groups = 1;  // at the end
    std::vector<telemetry::DeviceSummary> devices;
    telemetry::BytesSent bytes_sent;
    std::vector<telemetry::Retune> retunes;
    std::int64_t unreachable_samples = 0;
    double moving_seconds = 0.0;
    std::int64_t private_samples = 0;  // of an epoch
  };
  // Writes the summary, shows the result (on standard output as well with `json`), and returns the
  // exit code.
  base::Result<int> Finish(const run::TrainReport& report, Accounts accounts, bool json);

  // A run that fails on its way is no wrong usage, whatever the reason: scripts tell them apart.
  base::Status Failed(const base::Status& status) const;

 private:
  ActiveRun(const TrainPlan& plan, std::string command, ProgressView& view, RunLock lock,
            std::unique_ptr<telemetry::EventWriter> events);
  void Show(const run::TrainReport& report, const telemetry::Summary& summary);

  const TrainPlan& plan_;
  const std::string command_;
  ProgressView& view_;
  const RunLock lock_;
  const std::unique_ptr<telemetry::EventWriter> events_;
  run::Trainer::Hooks hooks_;
};

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_ACTIVE_RUN_H_
