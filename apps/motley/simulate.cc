#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "apps/motley/accounts.h"
#include "apps/motley/active_run.h"
#include "apps/motley/cluster_run.h"
#include "apps/motley/commands.h"
#include "apps/motley/devices.h"
#include "apps/motley/predict.h"
#include "apps/motley/progress.h"
#include "apps/motley/signals.h"
#include "apps/motley/train_plan.h"
#include "motley/base/clock.h"
#include "motley/cluster/coordinator.h"
#include "motley/run/loop.h"
#include "motley/run/probe.h"
#include "motley/sim/virtual_executor.h"

namespace motley::app {
namespace {

using base::Result;

constexpr double kBytesPerGigabit = 1e9 / 8.0;

// The speed of this machine's device, measured once for each way to use it.
class Curves {
 public:
  Curves(const TrainPlan& plan, const Environment& environment, ProgressView& view)
      : plan_(plan), environment_(environment), view_(view) {}

  Result<plan::SpeedCurve> Of(const Job::Device& wanted,
                              const std::shared_ptr<const graph::Graph>& graph) {
    const Job& job = plan_.resolved.job;
    if (wanted.sample_ms) {
      return plan::SpeedCurve{.fixed_seconds = 1e-3 * *wanted.fixed_ms,
                              .seconds_per_sample = 1e-3 * *wanted.sample_ms};
    }
    const std::string way =
        fmt::format("{}, {} threads, {} cores", wanted.kind, wanted.threads, wanted.cores.size());
    if (const auto found = curves_.find(way); found != curves_.end()) return found->second;
    engine::DeviceOptions options;
    options.bn_batch = job.train.bn_batch;
    options.kernel_cache = KernelCacheFile(environment_);
    const base::RealClock clock;
    MOTLEY_ASSIGN_OR_RETURN(const auto device, MakeDevice(wanted, {}, graph, options, clock));
    const std::int64_t multiple = std::max<std::int64_t>(1, job.train.bn_batch);
    const run::ProbeOptions probe{
        .batch = job.train.batch,
        .multiple = multiple,
        .seconds = 3.0,
        .cache = ProbeCacheFile(environment_),
        .key = run::ProbeKey(*device, job.train.batch, multiple, ThreadsOf(wanted)),
        .cancel = nullptr,
        .on_progress = [this](const std::string& message) { view_.Line(message); }};
    MOTLEY_ASSIGN_OR_RETURN(const run::Probed probed, run::Probe(*device, probe, clock));
    MOTLEY_ASSIGN_OR_RETURN(plan::SpeedCurve curve, plan::FitCurve(probed.timings));
    curve.cap = probed.cap;
    view_.Line(fmt::format(
        "this machine ({}): {:.3g} ms and {:.4g} ms per sample, off by at most {:.0f} %", way,
        1e3 * curve.fixed_seconds, 1e3 * curve.seconds_per_sample, 100.0 * curve.residual));
    curves_.emplace(way, curve);
    return curve;
  }

 private:
  const TrainPlan& plan_;
  const Environment& environment_;
  ProgressView& view_;
  std::map<std::string, plan::SpeedCurve> curves_;
};

Result<std::vector<sim::VirtualDevice>> MakeDevices(
    const TrainPlan& plan, const Environment& environment,
    const std::shared_ptr<const graph::Graph>& graph, ProgressView& view) {
  const Job& job = plan.resolved.job;
  Curves curves(plan, environment, view);
  std::vector<sim::VirtualDevice> devices;
  for (const Job::Device& wanted : DevicesOf(job)) {
    sim::VirtualDevice device;
    device.name = wanted.name;
    MOTLEY_ASSIGN_OR_RETURN(device.curve, curves.Of(wanted, graph));
    device.pace = PaceOf(job, wanted, 0.0);
    MOTLEY_ASSIGN_OR_RETURN(device.service, sim::Service::Parse(wanted.service));
    device.kind = fmt::format("virtual {}, {:g} of this machine", wanted.kind, wanted.speed);
    device.bytes_per_second =
        kBytesPerGigabit * wanted.bandwidth_gbit.value_or(job.network.bandwidth_gbit);
    device.power = PowerOf(wanted);
    device.streamed = wanted.streamed;
    device.fails_at = wanted.fails_at_seconds;
    MOTLEY_ASSIGN_OR_RETURN(device.secret, OpenPrivate(plan, wanted, environment));
    devices.push_back(std::move(device));
  }
  return devices;
}

std::vector<run::PrivatePool> PoolsOf(const std::vector<sim::VirtualDevice>& devices) {
  std::vector<run::PrivatePool> pools;
  for (const sim::VirtualDevice& device : devices) {
    if (device.secret == nullptr) continue;
    pools.push_back({device.name, device.secret->size(), device.secret->ContentHash()});
  }
  return pools;
}

// The samples of the epoch in which `state` stands.
Result<run::Pools> MakePools(const run::TrainState& state, const data::Dataset& train,
                             std::vector<run::PrivatePool> now) {
  if (state.step == 0 && state.committed.empty()) {
    std::int64_t size = train.size();
    for (const run::PrivatePool& pool : now) size += pool.size;
    return run::Pools(data::Ledger(state.epoch, size), train.size(), std::move(now));
  }
  if (state.private_pools != now) {
    return base::InvalidInput("the run began with other private samples")
        .WithFix("resume with the same devices and folders, or begin a new run");
  }
  MOTLEY_ASSIGN_OR_RETURN(data::Ledger ledger,
                          data::Ledger::Restore(state.epoch, state.epoch_size, state.committed));
  return run::Pools(std::move(ledger), train.size(), std::move(now));
}

ActiveRun::Accounts AccountsOf(const sim::VirtualExecutor& executor) {
  ActiveRun::Accounts accounts;
  for (const sim::VirtualTotal& total : executor.totals()) {
    telemetry::DeviceSummary device{.name = total.name,
                                    .kind = total.kind,
                                    .samples = total.samples,
                                    .compute_seconds = total.compute_seconds,
                                    .wait_seconds = total.wait_seconds};
    EstimateEnergy(total.power, total.compute_seconds, total.wait_seconds, device);
    accounts.devices.push_back(std::move(device));
  }
  SetShares(accounts.devices);
  accounts.groups = executor.groups();
  accounts.bytes_sent.gradient = executor.gradient_bytes();
  accounts.bytes_sent.weights = executor.weight_bytes();
  accounts.bytes_sent.activations = executor.activation_bytes();
  accounts.bytes_sent.public_data = executor.sample_bytes();
  accounts.unreachable_samples = executor.unreachable();
  return accounts;
}

// What only a virtual cluster can know to be wrong.
base::Status CheckVirtual(const ResolvedJob& resolved, bool time_only) {
  const Job& job = resolved.job;
  const auto devices = static_cast<std::int64_t>(DevicesOf(job).size());
  if (job.cluster.groups > devices) {
    return base::InvalidInput("{}: {} groups of {} device{}", resolved.Place("cluster.groups"),
                              job.cluster.groups, devices, devices == 1 ? "" : "s")
        .WithFix("at most as many groups as devices; [[device]] count = N makes more of them");
  }
  MOTLEY_RETURN_IF_ERROR(RefuseShards(resolved));
  if (time_only && !EpochLimit(job) && !job.train.max_seconds) {
    return base::InvalidInput("{}: without gradients no accuracy is reached",
                              resolved.Place("train.target_accuracy"))
        .WithFix("give train.epochs or train.max_seconds as well");
  }
  return {};
}

// The one that would need the least time for the batch at full speed: whose machine the head has.
plan::SpeedCurve FastestOf(const std::vector<sim::VirtualDevice>& devices, std::int64_t batch) {
  return std::min_element(
             devices.begin(), devices.end(),
             [&](const auto& a, const auto& b) { return a.curve.At(batch) < b.curve.At(batch); })
      ->curve;
}

// The head on a server, and what computes the two halves.
struct Halved {
  std::optional<sim::VirtualExecutor::Options::MergedHead> merged;
  std::unique_ptr<engine::Device> body, head;
};

Result<Halved> MakeHalves(const TrainPlan& plan, const std::vector<sim::VirtualDevice>& devices,
                          const engine::DeviceOptions& options, const base::Clock& clock) {
  const Job& job = plan.resolved.job;
  Halved halved;
  if (!job.cluster.merged_head) return halved;
  MOTLEY_ASSIGN_OR_RETURN(
      graph::Halves halves,
      cluster::SplitForMergedHead(plan.prepared.model.graph, job.train.bn_batch, /*gloo=*/false));
  if (!plan.time_only) {
    const auto make = [&](const graph::Graph& half) {
      return MakeDevice({}, {}, std::make_shared<const graph::Graph>(half), options, clock);
    };
    MOTLEY_ASSIGN_OR_RETURN(halved.body, make(halves.body));
    MOTLEY_ASSIGN_OR_RETURN(halved.head, make(halves.head));
  }
  halved.merged = {.halves = std::move(halves),
                   .server = FastestOf(devices, job.train.batch),
                   .body = halved.body.get(),
                   .head = halved.head.get()};
  return halved;
}

Result<int> ShowPredictions(const TrainPlan& plan, const std::vector<sim::VirtualDevice>& devices,
                            bool json) {
  const Job& job = plan.resolved.job;
  const auto halves =
      cluster::SplitForMergedHead(plan.prepared.model.graph, job.train.bn_batch, /*gloo=*/false);
  MOTLEY_ASSIGN_OR_RETURN(
      const Predictions predictions,
      Predict({.graph = plan.prepared.model.graph,
               .halves = halves,
               .devices = devices,
               .batch = job.train.batch,
               .multiple = std::max<std::int64_t>(1, job.train.bn_batch),
               .server = FastestOf(devices, job.train.batch),
               .update_seconds = 1e-3 * job.network.server_ms,
               .bytes_per_second = kBytesPerGigabit * job.network.bandwidth_gbit,
               .latency_seconds = 1e-6 * job.network.latency_us}));
  if (json) {
    fmt::print("{}\n", Dump(PredictionsJson(predictions)));
  } else {
    PrintPredictions(predictions, stdout);
  }
  return kExitDone;
}

}  // namespace

Result<int> Simulate(const SimulateArgs& args, const Environment& environment) {
  NoteCheckpointRequests();
  const base::RealClock real;
  ProgressView view(Console::Of(args.json ? stderr : stdout, environment), real);
  MOTLEY_ASSIGN_OR_RETURN(TrainPlan plan, MakePlan(args.run, {}, environment, view));
  if (!args.predict) MOTLEY_RETURN_IF_ERROR(CheckVirtual(plan.resolved, args.time_only));
  plan.time_only = args.time_only;
  MOTLEY_ASSIGN_OR_RETURN(run::TrainOptions options, MakeOptions(plan));
  // There is nothing to go on with.
  if (args.time_only) options.checkpoints.clear();
  const auto graph = std::make_shared<const graph::Graph>(plan.prepared.model.graph);
  MOTLEY_ASSIGN_OR_RETURN(std::vector<sim::VirtualDevice> devices,
                          MakeDevices(plan, environment, graph, view));
  if (args.predict) return ShowPredictions(plan, devices, args.json);
  engine::DeviceOptions computing;
  computing.bn_batch = plan.resolved.job.train.bn_batch;
  computing.kernel_cache = KernelCacheFile(environment);
  MOTLEY_ASSIGN_OR_RETURN(const auto device, MakeDevice({}, {}, graph, computing, real));
  MOTLEY_ASSIGN_OR_RETURN(const Halved halved, MakeHalves(plan, devices, computing, real));
  run::TrainState state = BeginningOf(plan);
  state.job = options.job;
  MOTLEY_ASSIGN_OR_RETURN(run::Pools pools,
                          MakePools(state, *plan.prepared.data.train, PoolsOf(devices)));

  MOTLEY_ASSIGN_OR_RETURN(const std::unique_ptr<ActiveRun> active,
                          ActiveRun::Begin(plan, "motley simulate", view));
  base::VirtualClock clock;
  clock.Advance(state.seconds);
  const std::unique_ptr<plan::Controller> controller =
      MakeController(plan.resolved.job, *plan.prepared.data.train, state, clock);
  NoteBook notes(view, active->events());
  run::Progress last{.epoch = state.epoch, .step = state.step};
  const double began = real.Now();
  run::Trainer::Hooks hooks = active->hooks();
  hooks.on_step = [&, show = hooks.on_step](const run::Progress& progress) {
    last = progress;
    show(progress);
  };
  const Job& job = plan.resolved.job;
  sim::VirtualExecutor executor(
      {.devices = std::move(devices),
       .latency_seconds = 1e-6 * job.network.latency_us,
       .server_seconds = 1e-3 * job.network.server_ms,
       .server_bytes_per_second = kBytesPerGigabit * job.network.bandwidth_gbit,
       .max_staleness = job.cluster.max_staleness,
       .groups = static_cast<int>(job.cluster.groups),
       .multiple = std::max<std::int64_t>(1, job.train.bn_batch),
       .time_only = args.time_only,
       .merged_head = halved.merged,
       .on_note =
           [&](const plan::Note& note) { notes.Take(note, clock.Now(), last.step, last.epoch); },
       .interrupt = hooks.interrupt},
      options, *device, plan.prepared.data, clock, state, std::move(pools), *controller);
  auto ended = run::Loop(options, executor, clock, hooks, std::move(state)).Run();
  if (!ended.ok()) return active->Failed(ended.status());
  view.Line(fmt::format(
      "virtual seconds; it took {:.1f} real ones, {:.1f} of them in gradients and {:.1f} in tests",
      real.Now() - began, executor.gradient_seconds(), executor.evaluation_seconds()));
  ActiveRun::Accounts accounts = AccountsOf(executor);
  accounts.retunes = notes.decisions();
  accounts.moving_seconds = ended->state.wait_seconds;
  accounts.private_samples = executor.ledger().size() - plan.prepared.data.train->size();
  return active->Finish(*ended, std::move(accounts), args.json);
}

}  // namespace motley::app
