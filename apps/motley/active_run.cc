#include "apps/motley/active_run.h"

#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <string_view>
#include <utility>

#include "apps/motley/commands.h"
#include "apps/motley/job.h"
#include "apps/motley/signals.h"
#include "apps/motley/version.h"
#include "motley/base/file.h"
#include "motley/data/open.h"
#include "motley/plan/momentum.h"

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
  for (Job::Device& device : job.devices) {
    // A form of data.train, or a plain folder.
    const bool form = data::AbsoluteSpec(device.private_data) != device.private_data;
    device.private_data =
        form ? data::AbsoluteSpec(device.private_data) : Absolute(device.private_data);
    constexpr std::string_view kTrace = "trace:";
    if (device.service.starts_with(kTrace)) {
      device.service = std::string(kTrace) + Absolute(device.service.substr(kTrace.size()));
    }
  }
  job.train.epochs = EpochLimit(job);
  MOTLEY_RETURN_IF_ERROR(base::ReplaceFile(plan.files.job(), ToToml(job)));
  if (plan.prepared.onnx_bytes.empty() || plan.resumed) return {};
  return base::ReplaceFile(plan.files.onnx(), plan.prepared.onnx_bytes);
}

telemetry::Moving MovingOf(const TrainPlan& plan, const ActiveRun::Accounts& accounts) {
  const Job::Network& network = plan.resolved.job.network;
  return {
      .seconds = accounts.moving_seconds,
      .joules_per_gigabyte = network.joules_per_gigabyte,
      .bandwidth_gbit = network.bandwidth_gbit,
      .private_bytes = accounts.private_samples * plan.prepared.data.train->pixels_per_sample()};
}

telemetry::Summary Summarize(const TrainPlan& plan, const run::TrainReport& report,
                             ActiveRun::Accounts accounts) {
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
  summary.groups = accounts.groups;
  summary.staleness = report.staleness.counts();
  summary.mean_staleness = report.staleness.mean();
  summary.interval_seconds = report.intervals.mean_seconds();
  summary.interval_sigma = report.intervals.sigma();
  summary.implied_momentum = plan::ImpliedMomentum(report.staleness.mean());
  if (report.coordinate_momentum_updates > 0) {
    summary.coordinate_momentum = report.coordinate_momentum_sum /
                                  static_cast<double>(report.coordinate_momentum_updates);
  }
  summary.devices = std::move(accounts.devices);
  summary.bytes_sent = accounts.bytes_sent;
  summary.retunes = std::move(accounts.retunes);
  summary.unreachable_samples = accounts.unreachable_samples;
  summary.moving = MovingOf(plan, accounts);
  return summary;
}

int ExitCode(const TrainPlan& plan, const run::TrainReport& report) {
  if (report.reason == run::StopReason::kTarget) return kExitDone;
  const bool missed = plan.resolved.job.train.target_accuracy.has_value();
  return missed || report.reason == run::StopReason::kInterrupted ? kExitTargetNotReached
                                                                  : kExitDone;
}

}  // namespace

Result<std::unique_ptr<ActiveRun>> ActiveRun::Begin(const TrainPlan& plan, std::string command,
                                                    ProgressView& view) {
  MOTLEY_ASSIGN_OR_RETURN(RunLock lock, TakeRunDirectory(plan));
  const std::string process = fmt::format("{:x}-{}", std::time(nullptr), ::getpid());
  MOTLEY_ASSIGN_OR_RETURN(auto events, telemetry::EventWriter::Open(plan.files.events(), process));
  MOTLEY_RETURN_IF_ERROR(WriteJob(plan));
  return std::unique_ptr<ActiveRun>(
      new ActiveRun(plan, std::move(command), view, std::move(lock), std::move(events)));
}

ActiveRun::ActiveRun(const TrainPlan& plan, std::string command, ProgressView& view, RunLock lock,
                     std::unique_ptr<telemetry::EventWriter> events)
    : plan_(plan),
      command_(std::move(command)),
      view_(view),
      lock_(std::move(lock)),
      events_(std::move(events)) {
  SignalFlags& signals = HandleSignals(kCheckpointAndStop);
  hooks_.interrupt = &signals.interrupt;
  hooks_.checkpoint_now = &signals.checkpoint_now;
  hooks_.on_step = [this](const run::Progress& progress) { view_.OnStep(progress); };
  hooks_.on_epoch = [this](std::uint64_t epoch, const run::Evaluation& test) {
    view_.OnEpoch(epoch, test);
  };
  hooks_.events = events_.get();
  view_.set_epochs(EpochLimit(plan.resolved.job));
}

Result<int> ActiveRun::Finish(const run::TrainReport& report, Accounts accounts, bool json) {
  const telemetry::Summary summary = Summarize(plan_, report, std::move(accounts));
  MOTLEY_RETURN_IF_ERROR(telemetry::WriteSummary(plan_.files.summary(), summary));
  MOTLEY_RETURN_IF_ERROR(events_->status());
  Show(report, summary);
  if (json) {
    nlohmann::ordered_json answer = telemetry::ToJson(summary);
    answer["run"] = plan_.files.folder.string();
    fmt::print("{}\n", Dump(answer));
  }
  return ExitCode(plan_, report);
}

void ActiveRun::Show(const run::TrainReport& report, const telemetry::Summary& summary) {
  const std::string folder = plan_.files.folder.string();
  const std::string name = ModelName(plan_.resolved.job);
  const bool interrupted = report.reason == run::StopReason::kInterrupted;
  const std::string time = summary.seconds < 10 ? fmt::format("{:.1f}s", summary.seconds)
                                                : FormatSeconds(summary.seconds);
  std::string accuracy = "not tested yet";
  if (summary.accuracy) {
    accuracy = fmt::format("test accuracy {:.2f} %, test loss {:.4f}", 100.0 * *summary.accuracy,
                           *summary.loss);
  }
  view_.Line(fmt::format("\n{} {} on {}: {}, {} steps in {}, {:.0f} samples/s",
                         interrupted ? "interrupted while training" : "trained", name,
                         plan_.resolved.job.data.train, accuracy, Thousands(summary.steps), time,
                         summary.samples_per_second));
  const auto& target = plan_.resolved.job.train.target_accuracy;
  if (target && report.reason != run::StopReason::kTarget) {
    view_.Line(fmt::format("the target of {:.2f} % was not reached", 100.0 * *target));
  }
  view_.Line("run directory: " + folder);
  if (plan_.time_only) return;
  view_.Line("next: " + (interrupted
                             ? command_ + " --resume " + folder
                             : fmt::format("motley export {} --onnx {}.onnx", folder, name)));
}

Status ActiveRun::Failed(const Status& status) const {
  std::string fix = status.fix();
  if (run::FindCheckpoint(plan_.files.checkpoints()).ok()) {
    fix += fmt::format("{}`{} --resume {}` goes on from the last checkpoint",
                       fix.empty() ? "" : "; ", command_, plan_.files.folder.string());
  }
  return Status(base::Code::kInternal, status.message()).WithFix(std::move(fix));
}

}  // namespace motley::app
