#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/motley/accounts.h"
#include "apps/motley/active_run.h"
#include "apps/motley/cluster_run.h"
#include "apps/motley/commands.h"
#include "apps/motley/devices.h"
#include "apps/motley/dry_run.h"
#include "apps/motley/progress.h"
#include "apps/motley/signals.h"
#include "apps/motley/train_plan.h"
#include "motley/base/clock.h"
#include "motley/energy/meter.h"
#include "motley/engine/device.h"
#include "motley/run/trainer.h"
#include "motley/telemetry/summary.h"

namespace motley::app {
namespace {

using base::Result;

// The joules of one device: by its profile over the whole job, or by the machine's meter over this
// process.
class EnergyAccount {
 public:
  EnergyAccount(const Job::Device& device, const std::filesystem::path& sysfs,
                const base::Clock& clock)
      : power_(PowerOf(device)) {
    if (power_) return;
    if (auto meter = energy::OpenMeter(sysfs, clock); meter.ok()) {
      meter_ = std::move(meter).value();
    }
  }
  // What the meter counts between these two is busy.
  void BeginStep() {
    Look();
    before_ = joules_;
  }
  void EndStep() {
    Look();
    if (before_) busy_ += *joules_ - *before_;
  }
  void Fill(const run::TrainState& state, telemetry::DeviceSummary& account) {
    EstimateEnergy(power_, state.compute_seconds, state.seconds - state.compute_seconds, account);
    if (power_) return;
    Look();
    if (!joules_) return;
    account.joules_busy = busy_;
    account.joules_idle = *joules_ - busy_;
    account.energy_source = std::string(meter_->source());
  }

 private:
  void Look() {
    if (meter_ == nullptr) return;
    if (const auto joules = meter_->Joules(); joules.ok()) joules_ = *joules;
  }

  const std::optional<plan::PowerProfile> power_;
  std::unique_ptr<energy::Meter> meter_;
  std::optional<double> joules_, before_;
  double busy_ = 0.0;
};

// Tells an account when a device computes a step.
class AccountedDevice final : public engine::Device {
 public:
  AccountedDevice(engine::Device& device, EnergyAccount& account)
      : device_(device), account_(account) {}
  const graph::Graph& graph() const override { return device_.graph(); }
  std::string kind() const override { return device_.kind(); }
  bool pauses() const override { return device_.pauses(); }
  Result<engine::StepResult> Step(const engine::StepRequest& request) override {
    account_.BeginStep();
    auto result = device_.Step(request);
    account_.EndStep();
    return result;
  }
  Result<engine::StepResult> Forward(const engine::ForwardRequest& request) override {
    return device_.Forward(request);
  }
  std::map<std::string, std::string> kernel_choices() const override {
    return device_.kernel_choices();
  }

 private:
  engine::Device& device_;
  EnergyAccount& account_;
};

Result<int> Run(const TrainPlan& plan, const Environment& environment, bool json,
                ProgressView& view) {
  MOTLEY_ASSIGN_OR_RETURN(const run::TrainOptions options, MakeOptions(plan));
  if (plan.resolved.job.cluster.merged_head) {
    return base::InvalidInput("{}: there is one device only, and it has the whole net",
                              plan.resolved.Place("cluster.merged_head"))
        .WithFix("leave it out, or describe several [[device]]");
  }
  MOTLEY_RETURN_IF_ERROR(RefuseShards(plan.resolved));
  const base::RealClock clock;
  MOTLEY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Device> device,
                          MakeOnlyDevice(plan, environment, clock));
  MOTLEY_ASSIGN_OR_RETURN(const std::unique_ptr<ActiveRun> active,
                          ActiveRun::Begin(plan, "motley train", view));
  const Job::Device wanted = DevicesOf(plan.resolved.job).front();
  EnergyAccount energy(wanted, plan.sysfs, clock);
  AccountedDevice accounted(*device, energy);
  auto ended = run::Trainer(options, accounted, plan.prepared.data, clock)
                   .Run(BeginningOf(plan), active->hooks());
  if (!ended.ok()) return active->Failed(ended.status());
  const run::TrainReport& report = *ended;
  telemetry::DeviceSummary account{.name = wanted.name,
                                   .kind = device->kind(),
                                   .samples = report.state.samples,
                                   .share = 1.0,
                                   .compute_seconds = report.state.compute_seconds,
                                   .wait_seconds = report.state.wait_seconds};
  energy.Fill(report.state, account);
  return active->Finish(report, {.devices = {account}, .bytes_sent = {}}, json);
}

Result<int> RunOnDevices(const TrainPlan& plan, const Environment& environment, bool json,
                         ProgressView& view) {
  ClusterFolder folder(plan.files.cluster());
  ClusterRun run{.plan = plan,
                 .environment = environment,
                 .view = view,
                 .folder = folder,
                 .command = "motley train",
                 .json = json,
                 .options = {},
                 .on_listening = {}};
  run.options.listen.clear();  // nobody else takes part
  run.options.tls = false;
  return run.Run();
}

Result<int> ShowDryRun(const TrainPlan& plan, const Environment& environment, bool json) {
  std::vector<std::int64_t> private_samples;
  for (const Job::Device& device : DevicesOf(plan.resolved.job)) {
    MOTLEY_ASSIGN_OR_RETURN(const auto secret, OpenPrivate(plan, device, environment));
    private_samples.push_back(secret == nullptr ? 0 : secret->size());
  }
  DryRun dry_run{plan.resolved, plan.prepared, {}};
  if (!plan.prepared.stand_in) {
    dry_run.does_not_fit =
        WhatDoesNotFit(plan.resolved.job, *plan.prepared.data.train, private_samples);
  }
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
  if (args.dry_run) return ShowDryRun(plan, environment, args.json);
  return IsOneDevice(plan.resolved.job) ? Run(plan, environment, args.json, view)
                                        : RunOnDevices(plan, environment, args.json, view);
}

}  // namespace motley::app
