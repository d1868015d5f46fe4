#include <memory>

#include "apps/motley/active_run.h"
#include "apps/motley/commands.h"
#include "apps/motley/dry_run.h"
#include "apps/motley/progress.h"
#include "apps/motley/signals.h"
#include "apps/motley/train_plan.h"
#include "motley/base/clock.h"
#include "motley/run/trainer.h"
#include "motley/telemetry/summary.h"

namespace motley::app {
namespace {

using base::Result;

Result<int> Run(const TrainPlan& plan, const Environment& environment, bool json,
                ProgressView& view) {
  MOTLEY_ASSIGN_OR_RETURN(const run::TrainOptions options, MakeOptions(plan));
  MOTLEY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Device> device,
                          MakeDevice(plan, environment));
  MOTLEY_ASSIGN_OR_RETURN(const std::unique_ptr<ActiveRun> active,
                          ActiveRun::Begin(plan, "motley train", view));
  const base::RealClock clock;
  auto ended = run::Trainer(options, *device, plan.prepared.data, clock)
                   .Run(BeginningOf(plan), active->hooks());
  if (!ended.ok()) return active->Failed(ended.status());
  const run::TrainReport& report = *ended;
  const telemetry::DeviceSummary account{.name = plan.resolved.job.device.name,
                                         .kind = device->kind(),
                                         .samples = report.state.samples,
                                         .share = 1.0,
                                         .compute_seconds = report.state.compute_seconds,
                                         .wait_seconds = report.state.wait_seconds};
  return active->Finish(report, {.devices = {account}, .bytes_sent = {}}, json);
}

Result<int> ShowDryRun(const TrainPlan& plan, bool json) {
  const DryRun dry_run{plan.resolved, plan.prepared};
  if (json) {
    fmt::print("{}\n", Dump(DryRunJson(dry_run)));
  } else {
    PrintDryRun(dry_run, stdout);
  }
  return kExitDone;
}

}  // namespace

Result<int> Train(const TrainArgs& args, const Environment& environment) {
  if (args.help_keys) {
    if (args.json) {
      fmt::print("{}\n", Dump(KeysJson()));
    } else {
      PrintKeys(stdout);
    }
    return kExitDone;
  }
  NoteCheckpointRequests();
  const base::RealClock clock;
  // With --json standard output belongs to the answer.
  const Console console = Console::Of(args.json ? stderr : stdout, environment);
  ProgressView view(console, clock);
  MOTLEY_ASSIGN_OR_RETURN(const TrainPlan plan,
                          MakePlan(args.run, {.fetch = !args.dry_run}, environment, view));
  if (args.dry_run) return ShowDryRun(plan, args.json);
  return Run(plan, environment, args.json, view);
}

}  // namespace motley::app
