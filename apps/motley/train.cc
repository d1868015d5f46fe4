#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <utility>

#include "apps/motley/commands.h"
#include "apps/motley/dry_run.h"
#include "apps/motley/job.h"
#include "apps/motley/progress.h"
#include "apps/motley/run_dir.h"
#include "apps/motley/signals.h"
#include "apps/motley/train_plan.h"
#include "apps/motley/version.h"
#include "motley/base/clock.h"
#include "motley/base/file.h"
#include "motley/data/open.h"
#include "motley/run/trainer.h"
#include "motley/telemetry/events.h"
#include "motley/telemetry/summary.h"

namespace motley::app {
namespace {

using base::Result;
using base::Status;

std::string Absolute(const std::string& file) {
  std::error_code error;
  const auto path = std::filesystem::absolute(file, error).lexically_normal();
  return file.empty() || error ? file : path.string();
}

// job.toml and model.onnx of the run directory. The events file exists by now: it marks the folder
// as ours. Paths are absolute, so that the run can be resumed from any folder.
Status WriteJob(const TrainPlan& plan) {
  Job job = plan.resolved.job;
  job.data.train = data::AbsoluteSpec(job.data.train);
  job.data.test = data::AbsoluteSpec(job.data.test);
  job.model.onnx = Absolute(job.model.onnx);
  job.model.weights = Absolute(job.model.weights);
  job.train.epochs = EpochLimit(job);
  MOTLEY_RETURN_IF_ERROR(base::ReplaceFile(plan.files.job(), ToToml(job)));
  if (plan.prepared.onnx_bytes.empty() || plan.resumed) return {};
  return base::ReplaceFile(plan.files.onnx(), plan.prepared.onnx_bytes);
}

telemetry::Summary Summarize(const TrainPlan& plan, const run::TrainReport& report,
                             const engine::Device& device) {
  telemetry::Summary summary;
  summary.version = kVersion;
  summary.stop = run::ToString(report.reason);
  if (report.test.samples > 0) {
    summary.accuracy = report.test.accuracy;
    summary.loss = report.test.loss;
  }
  summary.epochs = static_cast<std::int64_t>(report.state.epoch);
  summary.steps = report.state.step;
  summary.samples = report.state.samples;
  summary.seconds = report.state.seconds;
  if (report.state.seconds > 0) {
    summary.samples_per_second = static_cast<double>(report.state.samples) / report.state.seconds;
  }
  summary.devices.push_back({.name = plan.resolved.job.device.name,
                             .kind = device.kind(),
                             .samples = report.state.samples,
                             .share = 1.0,
                             .compute_seconds = report.state.compute_seconds,
                             .wait_seconds = report.state.wait_seconds});
  return summary;
}

void ShowResult(const TrainPlan& plan, const run::TrainReport& report,
                const telemetry::Summary& summary, ProgressView& view) {
  const std::string folder = plan.files.folder.string();
  const std::string name = ModelName(plan.resolved.job);
  const bool interrupted = report.reason == run::StopReason::kInterrupted;
  const std::string time = summary.seconds < 10 ? fmt::format("{:.1f}s", summary.seconds)
                                                : FormatSeconds(summary.seconds);
  std::string accuracy = "not tested yet";
  if (summary.accuracy) {
    accuracy = fmt::format("test accuracy {:.2f} %, test loss {:.4f}", 100.0 * *summary.accuracy,
                           *summary.loss);
  }
  view.Line(fmt::format("\n{} {} on {}: {}, {} steps in {}, {:.0f} samples/s",
                        interrupted ? "interrupted while training" : "trained", name,
                        plan.resolved.job.data.train, accuracy, Thousands(summary.steps), time,
                        summary.samples_per_second));
  const auto& target = plan.resolved.job.train.target_accuracy;
  if (target && report.reason != run::StopReason::kTarget) {
    view.Line(fmt::format("the target of {:.2f} % was not reached", 100.0 * *target));
  }
  view.Line("run directory: " + folder);
  view.Line("next: " + (interrupted
                            ? "motley train --resume " + folder
                            : fmt::format("motley export {} --onnx {}.onnx", folder, name)));
}

int ExitCode(const TrainPlan& plan, const run::TrainReport& report) {
  if (report.reason == run::StopReason::kTarget) return kExitDone;
  const bool missed = plan.resolved.job.train.target_accuracy.has_value();
  return missed || report.reason == run::StopReason::kInterrupted ? kExitTargetNotReached
                                                                  : kExitDone;
}

// A run that fails on its way is no wrong usage, whatever the reason: scripts tell them apart.
Status Failed(const TrainPlan& plan, const Status& status) {
  std::string fix = status.fix();
  if (run::FindCheckpoint(plan.files.checkpoints()).ok()) {
    fix += fmt::format("{}`motley train --resume {}` goes on from the last checkpoint",
                       fix.empty() ? "" : "; ", plan.files.folder.string());
  }
  return Status(base::Code::kInternal, status.message()).WithFix(std::move(fix));
}

Result<int> Run(const TrainPlan& plan, const Environment& environment, bool json,
                ProgressView& view) {
  MOTLEY_ASSIGN_OR_RETURN(const run::TrainOptions options, MakeOptions(plan));
  MOTLEY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Device> device,
                          MakeDevice(plan, environment));
  MOTLEY_ASSIGN_OR_RETURN(const RunLock lock, TakeRunDirectory(plan));
  const std::string process = fmt::format("{:x}-{}", std::time(nullptr), ::getpid());
  MOTLEY_ASSIGN_OR_RETURN(const auto events,
                          telemetry::EventWriter::Open(plan.files.events(), process));
  MOTLEY_RETURN_IF_ERROR(WriteJob(plan));

  const base::RealClock clock;
  SignalFlags& signals = HandleSignals();
  run::Trainer::Hooks hooks;
  hooks.interrupt = &signals.interrupt;
  hooks.checkpoint_now = &signals.checkpoint_now;
  hooks.on_step = [&](const run::Progress& progress) { view.OnStep(progress); };
  hooks.on_epoch = [&](std::uint64_t epoch, const run::Evaluation& test) {
    view.OnEpoch(epoch, test);
  };
  hooks.events = events.get();
  run::Trainer trainer(options, *device, plan.prepared.data, clock);
  auto ended = trainer.Run(
      plan.resumed ? *plan.resumed
                   : run::Trainer::Fresh(plan.prepared.model, *plan.prepared.data.train),
      hooks);
  if (!ended.ok()) return Failed(plan, ended.status());
  const run::TrainReport report = std::move(ended).value();

  const telemetry::Summary summary = Summarize(plan, report, *device);
  MOTLEY_RETURN_IF_ERROR(telemetry::WriteSummary(plan.files.summary(), summary));
  MOTLEY_RETURN_IF_ERROR(events->status());
  ShowResult(plan, report, summary, view);
  if (json) {
    nlohmann::ordered_json answer = telemetry::ToJson(summary);
    answer["run"] = plan.files.folder.string();
    fmt::print("{}\n", Dump(answer));
  }
  return ExitCode(plan, report);
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
  MOTLEY_ASSIGN_OR_RETURN(const TrainPlan plan, MakePlan(args, environment, view));
  if (args.dry_run) return ShowDryRun(plan, args.json);
  view.set_epochs(EpochLimit(plan.resolved.job));
  return Run(plan, environment, args.json, view);
}

}  // namespace motley::app
