#include "apps/motley/cluster_run.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "apps/motley/accounts.h"
#include "apps/motley/active_run.h"
#include "apps/motley/devices.h"
#include "apps/motley/signals.h"
#include "motley/cluster/job.h"
#include "motley/cluster/worker.h"
#include "motley/data/open.h"
#include "motley/plan/equal_shares.h"
#include "motley/run/loop.h"
#include "motley/tune/balancer.h"
#include "motley/tune/host_keeper.h"
#include "motley/tune/momentum_keeper.h"

namespace motley::app {
namespace {

using base::Result;
using base::Status;
using Fields = std::vector<std::pair<std::string, std::string>>;

// Long enough for a run on this machine; nobody else ever sees the token.
constexpr double kOwnTokenHours = 24.0 * 365.0;

cluster::proto::Job MakeJob(const TrainPlan& plan) {
  const Job& job = plan.resolved.job;
  const Prepared& prepared = plan.prepared;
  return cluster::MakeJob({.zoo = job.model.onnx.empty() ? job.model.zoo : "",
                           .onnx = prepared.onnx_bytes,
                           .seed = static_cast<std::uint64_t>(job.train.seed),
                           .bn_batch = job.train.bn_batch,
                           .batch = job.train.batch,
                           .merged_head = job.cluster.merged_head,
                           .shards = static_cast<int>(job.cluster.shards),
                           // Machines of a cluster often share a file system.
                           .data = data::AbsoluteSpec(job.data.train),
                           .test_data = data::AbsoluteSpec(job.data.test),
                           .resize_height = job.data.resize.height,
                           .resize_width = job.data.resize.width,
                           .train_transform = prepared.train_transform},
                          prepared.model.graph, prepared.data);
}

// Brings what a coordinator tells to those who watch and to the events.
//
// Thread safety: all calls from any thread.
class Teller {
 public:
  Teller(ProgressView& view, telemetry::EventWriter& events, const base::Clock& clock,
         const run::TrainState& state)
      : view_(view),
        events_(events),
        clock_(clock),
        zero_(clock.Now() - state.seconds),
        step_(state.step),
        epoch_(state.epoch) {}

  void OnStep(const run::Progress& progress) {
    step_ = progress.step;
    epoch_ = progress.epoch;
  }
  void OnEvent(const std::string& name, const std::string& message, const Fields& fields) {
    nlohmann::json json = {{"message", message}, {"step", step_.load()}, {"epoch", epoch_.load()}};
    for (const auto& [key, value] : fields) json[key] = value;
    events_.Write(clock_.Now() - zero_, name, json);
    view_.Line(message);
    const std::lock_guard lock(mutex_);
    if (name == "joined") joined_.insert(json.value("worker", ""));
    if (name == "unreachable") {
      unreachable_ += std::stoll(json.value("samples", "0"));
    }
  }
  // A decision of the controller, or what came of one.
  void OnNote(const plan::Note& note) { notes_.Take(note, clock_.Now() - zero_, step_, epoch_); }
  bool HasJoined(const std::string& device) {
    const std::lock_guard lock(mutex_);
    return joined_.contains(device);
  }
  // For the summary, once nobody tells any more.
  std::vector<telemetry::Retune> retunes() const { return notes_.decisions(); }
  std::int64_t unreachable() const { return unreachable_; }

 private:
  ProgressView& view_;
  telemetry::EventWriter& events_;
  const base::Clock& clock_;
  const double zero_;  // the start of the job, on the clock
  std::atomic<std::int64_t> step_;
  std::atomic<std::uint64_t> epoch_;
  std::mutex mutex_;
  std::set<std::string> joined_;
  NoteBook notes_{view_, events_};
  std::int64_t unreachable_ = 0;
};

// A device that the job lists: a worker like any other, in a thread of this process.
class OwnDevice {
 public:
  using OnFailed = std::function<void(const std::string& name, const Status& status)>;
  OwnDevice(cluster::WorkerOptions options, OnFailed on_failed)
      : thread_([this, options = std::move(options), on_failed = std::move(on_failed)] {
          const auto report = cluster::RunWorker(options, &leave_);
          if (!report.ok() && !leave_) on_failed(options.name, report.status());
        }) {}
  ~OwnDevice() {
    leave_ = true;
    thread_.join();
  }
  OwnDevice(const OwnDevice&) = delete;
  OwnDevice& operator=(const OwnDevice&) = delete;

 private:
  std::atomic<bool> leave_{false};
  std::thread thread_;
};

std::string StopWords(const Result<run::TrainReport>& ended) {
  if (!ended.ok()) return "the job has failed: " + ended.status().message();
  if (ended->reason == run::StopReason::kInterrupted) return "the coordinator was interrupted";
  return fmt::format("done ({})", run::ToString(ended->reason));
}

ActiveRun::Accounts AccountsOf(const cluster::Coordinator& coordinator) {
  ActiveRun::Accounts accounts;
  const std::vector<cluster::MemberTotal> totals = coordinator.totals();
  for (const cluster::MemberTotal& total : totals) {
    telemetry::DeviceSummary device{.name = total.name,
                                    .kind = total.device,
                                    .samples = total.samples,
                                    .compute_seconds = total.compute_seconds,
                                    .wait_seconds = total.wait_seconds};
    const double busy = total.compute_seconds + total.test_seconds;
    EstimateEnergy(total.power, busy, total.present_seconds - busy, device);
    if (!total.meter.empty() && !total.power) {
      device.joules_busy = std::min(total.joules, total.joules_busy);
      device.joules_idle = total.joules - *device.joules_busy;
      device.energy_source = total.meter;
    }
    accounts.devices.push_back(std::move(device));
  }
  SetShares(accounts.devices);
  accounts.bytes_sent = coordinator.traffic();
  accounts.groups = coordinator.groups();
  return accounts;
}

std::unique_ptr<plan::Controller> MakeSharer(const Job& job, const data::Dataset& train,
                                             const run::TrainState& state,
                                             const base::Clock& clock) {
  const std::int64_t multiple = std::max<std::int64_t>(job.train.bn_batch, 1);
  const int groups = static_cast<int>(job.cluster.groups);
  if (job.train.tune == "off") {
    return std::make_unique<plan::EqualShares>(job.train.batch, multiple, groups);
  }
  std::optional<double> deadline = job.train.deadline_seconds;
  if (deadline) *deadline = std::max(1e-3, *deadline - state.seconds);
  const auto epochs = EpochLimit(job).value_or(0) - static_cast<std::int64_t>(state.epoch);
  const auto numbers = static_cast<double>(state.weights.size() + state.buffers.size());
  auto balancer = std::make_unique<tune::Balancer>(
      tune::BalancerOptions{
          .batch = job.train.batch,
          .multiple = multiple,
          .groups = groups,
          .public_samples = train.size(),
          .epochs = std::max<std::int64_t>(0, epochs),
          .keep = job.train.tune != "once",
          .objective =
              job.train.objective == "energy" ? tune::Objective::kEnergy : tune::Objective::kTime,
          .deadline_seconds = deadline,
          // There and back.
          .moving_joules = 2e-9 * sizeof(float) * numbers * job.network.joules_per_gigabyte},
      clock);
  if (job.train.tune != "auto" || groups == 1) return balancer;
  return std::make_unique<tune::MomentumKeeper>(std::move(balancer), job.train.momentum);
}

}  // namespace

Status RefuseShards(const ResolvedJob& resolved) {
  if (resolved.job.cluster.shards == 1) return {};
  return base::InvalidInput("{}: only workers of other processes can hold a part of the model",
                            resolved.Place("cluster.shards"))
      .WithFix("leave it out, or use `motley serve` and `motley join`");
}

std::unique_ptr<plan::Controller> MakeController(const Job& job, const data::Dataset& train,
                                                 const run::TrainState& state,
                                                 const base::Clock& clock) {
  auto sharer = MakeSharer(job, train, state, clock);
  if (job.cluster.shards == 1) return sharer;
  return std::make_unique<tune::HostKeeper>(std::move(sharer),
                                            static_cast<int>(job.cluster.shards));
}

std::string WhatDoesNotFit(const Job& job, const data::Dataset& train,
                           const std::vector<std::int64_t>& private_samples) {
  const std::vector<Job::Device> devices = DevicesOf(job);
  const auto other = [&](const Job::Device& device) { return device.kind != devices[0].kind; };
  const auto none = [](std::int64_t samples) { return samples == 0; };
  if (job.train.tune == "off" || std::any_of(devices.begin(), devices.end(), other) ||
      std::all_of(private_samples.begin(), private_samples.end(), none)) {
    return {};
  }
  Job stated = job;
  stated.train.deadline_seconds.reset();  // of seconds that nobody knows
  const base::VirtualClock clock;
  const auto controller = MakeController(stated, train, run::TrainState(), clock);
  std::string misfit;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    // In any unit: what is told are ratios.
    const double speed = devices[i].speed * static_cast<double>(ThreadsOf(devices[i]));
    controller->OnEvent(
        plan::DeviceJoined{.device = devices[i].name,
                           .curve = plan::SpeedCurve{.seconds_per_sample = 1.0 / speed},
                           .power = PowerOf(devices[i]),
                           .private_samples = private_samples[i]});
    misfit.clear();  // the others are there as well
    for (const plan::Note& note : controller->TakeNotes()) {
      for (const auto& [key, value] : note.texts) {
        if (key == "does_not_fit") misfit = value;
      }
    }
  }
  return misfit.empty() ? misfit : "by the speeds that the job states, " + misfit;
}

Result<int> ClusterRun::Run() {
  const base::RealClock clock;
  const Job& job = plan.resolved.job;
  // Everything that can be wrong is looked at before the run directory is made.
  if (options.listen.empty()) {
    MOTLEY_RETURN_IF_ERROR(RefuseShards(plan.resolved));
  } else {
    MOTLEY_RETURN_IF_ERROR(cluster::CheckTravels(MakeJob(plan)));
  }
  MOTLEY_ASSIGN_OR_RETURN(const run::TrainOptions train, MakeOptions(plan));
  std::vector<cluster::WorkerOptions> workers;
  if (options.listen.empty() || !job.devices.empty()) {
    std::vector<std::int64_t> private_samples;
    MOTLEY_ASSIGN_OR_RETURN(workers, OwnWorkers(plan, environment, clock, private_samples));
    // With others that may join nobody knows it yet: the plan says it when they have.
    const std::string misfit = options.listen.empty()
                                   ? WhatDoesNotFit(job, *plan.prepared.data.train, private_samples)
                                   : "";
    if (!misfit.empty()) view.Line("note: " + misfit);
  }
  MOTLEY_ASSIGN_OR_RETURN(const std::unique_ptr<ActiveRun> active,
                          ActiveRun::Begin(plan, command, view));
  if (options.tls) {
    MOTLEY_ASSIGN_OR_RETURN(options.identity, folder.identity());
  }
  run::TrainState state = BeginningOf(plan);
  state.job = train.job;
  Teller teller(view, active->events(), clock, state);
  run::Trainer::Hooks hooks = active->hooks();
  hooks.on_step = [&, show = hooks.on_step](const run::Progress& progress) {
    teller.OnStep(progress);
    show(progress);
  };
  options.tokens = &folder.tokens();
  const bool trusted = job.cluster.trusted_network && !options.listen.empty();
  options.gloo = trusted && job.cluster.groups == 1;
  if (trusted && !options.gloo) {
    view.Line("note: gradients of several groups go through the coordinator, over TLS");
  }
  options.max_staleness = job.cluster.max_staleness;
  options.heartbeat_seconds = job.cluster.heartbeat_seconds;
  options.update_threads = train.update_threads;
  options.min_workers = options.listen.empty() ? static_cast<int>(workers.size())
                                               : static_cast<int>(job.cluster.min_workers);
  const auto tell = [&teller](const std::string& name, const std::string& message,
                              const Fields& fields) { teller.OnEvent(name, message, fields); };
  const auto note = [&teller](const plan::Note& one) { teller.OnNote(one); };
  const std::unique_ptr<plan::Controller> controller =
      MakeController(job, *plan.prepared.data.train, state, clock);
  MOTLEY_ASSIGN_OR_RETURN(
      const std::unique_ptr<cluster::Coordinator> coordinator,
      cluster::Coordinator::Start(
          options, MakeJob(plan), plan.prepared.model.graph, plan.prepared.data, state, *controller,
          clock, {.interrupt = hooks.interrupt, .on_event = tell, .on_note = note}));
  if (on_listening) MOTLEY_RETURN_IF_ERROR(on_listening(coordinator->port()));
  // Nobody else is coming: what one of them cannot do ends the run instead of making all others
  // wait. Once it has worked, the others go on without it.
  std::optional<Status> failed;
  std::mutex failing;
  const auto on_failed = [&](const std::string& name, const Status& status) {
    const std::lock_guard lock(failing);
    if (options.listen.empty() && !teller.HasJoined(name)) {
      failed = Status(status).In(name);
      HandleSignals(kCheckpointAndStop).interrupt = true;
    } else {
      view.Line(fmt::format("warning: {} does not work any more: {}", name, status.ToString()));
    }
  };
  std::list<OwnDevice> devices;
  for (cluster::WorkerOptions& worker : workers) {
    worker.channel = coordinator->InProcessChannel();
    worker.devices_here = static_cast<int>(workers.size());
    MOTLEY_ASSIGN_OR_RETURN(worker.token, IssueToken(folder, options.tls, kOwnTokenHours));
    worker.on_note = [this, name = worker.name](const std::string& message) {
      view.Line(fmt::format("{}: {}", name, message));
    };
    devices.emplace_back(std::move(worker), on_failed);
  }
  auto ended = run::Loop(train, *coordinator, clock, hooks, std::move(state)).Run();
  coordinator->Stop(StopWords(ended));
  devices.clear();
  if (failed) return active->Failed(*failed);
  if (!ended.ok()) return active->Failed(ended.status());
  ActiveRun::Accounts accounts = AccountsOf(*coordinator);
  accounts.retunes = teller.retunes();
  accounts.unreachable_samples = teller.unreachable();
  accounts.moving_seconds = ended->state.wait_seconds;
  accounts.private_samples = coordinator->ledger().size() - plan.prepared.data.train->size();
  return active->Finish(*ended, std::move(accounts), json);
}

}  // namespace motley::app
