#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "apps/motley/active_run.h"
#include "apps/motley/address.h"
#include "apps/motley/cluster_folder.h"
#include "apps/motley/commands.h"
#include "apps/motley/progress.h"
#include "apps/motley/signals.h"
#include "apps/motley/train_plan.h"
#include "motley/base/clock.h"
#include "motley/cluster/coordinator.h"
#include "motley/cluster/job.h"
#include "motley/cluster/worker.h"
#include "motley/data/open.h"
#include "motley/plan/equal_shares.h"
#include "motley/run/loop.h"

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;
using Fields = std::vector<std::pair<std::string, std::string>>;

// What is sent without TLS can be read and changed by everybody on the way.
Status CheckInsecure(const ServeArgs& args, const Address& listen) {
  if (!args.insecure || args.insecure_anywhere || IsLoopback(listen.host)) return {};
  return InvalidInput("--insecure: {} can be reached from other machines", listen.ToText())
      .WithFix(
          "leave --insecure out, listen on 127.0.0.1, or add --insecure-anywhere if everybody "
          "on this network may read, change and join the job");
}

// What --listen says; none if it is not given.
Result<std::optional<Address>> GivenAddress(const ServeArgs& args) {
  if (args.listen.empty()) return std::optional<Address>();
  auto address = ParseAddress(args.listen);
  if (!address.ok()) return std::move(address).status().In("--listen");
  MOTLEY_RETURN_IF_ERROR(CheckInsecure(args, *address));
  return std::optional(std::move(address).value());
}

// The address of --listen; otherwise that of the process before, where workers look for this one;
// otherwise every address, or with --insecure this machine's own, at the default port if that is
// free and at any other if it is not: two jobs may run on one machine.
Result<Address> ChooseAddress(const ServeArgs& args, const std::optional<Address>& given,
                              const std::optional<Place>& before) {
  if (given) {
    MOTLEY_RETURN_IF_ERROR(CheckCanListen(*given).In("--listen"));
    return *given;
  }
  if (before) {
    MOTLEY_RETURN_IF_ERROR(CheckInsecure(args, before->listen));
    const Status free = CheckCanListen(before->listen);
    if (free.ok()) return before->listen;
    return Status(free)
        .In("where the workers of this run look for it")
        .WithFix(free.fix() + "; workers then have to be started anew with the new address");
  }
  const bool here_only = args.insecure && !args.insecure_anywhere;
  Address address{here_only ? "127.0.0.1" : "0.0.0.0", kDefaultPort};
  if (!CheckCanListen(address).ok()) address.port = 0;
  return address;
}

cluster::proto::Job MakeJob(const TrainPlan& plan) {
  const Job& job = plan.resolved.job;
  const Prepared& prepared = plan.prepared;
  return cluster::MakeJob({.zoo = job.model.onnx.empty() ? job.model.zoo : "",
                           .onnx = prepared.onnx_bytes,
                           .seed = static_cast<std::uint64_t>(job.train.seed),
                           .bn_batch = job.train.bn_batch,
                           .batch = job.train.batch,
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
  }

 private:
  ProgressView& view_;
  telemetry::EventWriter& events_;
  const base::Clock& clock_;
  const double zero_;  // the start of the job, on the clock
  std::atomic<std::int64_t> step_;
  std::atomic<std::uint64_t> epoch_;
};

// The device that the job lists: a worker like any other, in a thread of this process.
class OwnDevice {
 public:
  OwnDevice(cluster::WorkerOptions options, ProgressView& view)
      : thread_([this, options = std::move(options), &view] {
          const auto report = cluster::RunWorker(options, &leave_);
          if (report.ok() || leave_) return;
          view.Line(fmt::format("warning: the device of this machine does not work any more: {}",
                                report.status().ToString()));
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
  std::int64_t samples = 0;
  for (const cluster::MemberTotal& total : totals) samples += total.samples;
  for (const cluster::MemberTotal& total : totals) {
    accounts.devices.push_back({.name = total.name,
                                .kind = total.device,
                                .samples = total.samples,
                                .share = static_cast<double>(total.samples) /
                                         static_cast<double>(std::max<std::int64_t>(samples, 1)),
                                .compute_seconds = total.compute_seconds,
                                .wait_seconds = total.wait_seconds});
  }
  const cluster::Bytes sent = coordinator.traffic();
  accounts.bytes_sent = {.gradient = sent.gradient,
                         .weights = sent.weights,
                         .activations = sent.activations,
                         .public_data = sent.public_data,
                         .private_data = sent.private_data,
                         .control = sent.control};
  return accounts;
}

// One life of `motley serve`, from the run directory to the last worker's farewell.
class Server {
 public:
  Server(const ServeArgs& args, const Environment& environment, const TrainPlan& plan,
         ProgressView& view)
      : args_(args),
        environment_(environment),
        plan_(plan),
        view_(view),
        folder_(plan.files.cluster()),
        controller_(plan.resolved.job.train.batch,
                    std::max<std::int64_t>(plan.resolved.job.train.bn_batch, 1)) {}

  Result<int> Run(const std::optional<Address>& given) {
    // Everything that can be wrong is looked at before the run directory is made.
    MOTLEY_ASSIGN_OR_RETURN(const std::optional<Place> before, folder_.LoadPlace());
    MOTLEY_ASSIGN_OR_RETURN(const Address listen, ChooseAddress(args_, given, before));
    MOTLEY_ASSIGN_OR_RETURN(const run::TrainOptions options, MakeOptions(plan_));
    MOTLEY_ASSIGN_OR_RETURN(
        const std::unique_ptr<ActiveRun> active,
        ActiveRun::Begin(plan_, args_.insecure ? "motley serve --insecure" : "motley serve",
                         view_));
    run::TrainState state = BeginningOf(plan_);
    state.job = options.job;
    Teller teller(view_, active->events(), clock_, state);
    run::Trainer::Hooks hooks = active->hooks();
    hooks.on_step = [&, show = hooks.on_step](const run::Progress& progress) {
      teller.OnStep(progress);
      show(progress);
    };
    MOTLEY_ASSIGN_OR_RETURN(const std::unique_ptr<cluster::Coordinator> coordinator,
                            Listen(listen, options, state, teller, hooks.interrupt));
    MOTLEY_RETURN_IF_ERROR(Invite({listen.host, coordinator->port()}));
    std::optional<OwnDevice> device;
    if (plan_.resolved.job.device.listed) {
      MOTLEY_ASSIGN_OR_RETURN(auto worker, OwnWorker(*coordinator));
      device.emplace(std::move(worker), view_);
    }
    auto ended = run::Loop(options, *coordinator, clock_, hooks, std::move(state)).Run();
    coordinator->Stop(StopWords(ended));
    device.reset();
    if (!ended.ok()) return active->Failed(ended.status());
    return active->Finish(*ended, AccountsOf(*coordinator), args_.json);
  }

 private:
  Result<std::unique_ptr<cluster::Coordinator>> Listen(const Address& listen,
                                                       const run::TrainOptions& options,
                                                       run::TrainState& state, Teller& teller,
                                                       const std::atomic<bool>* interrupt) {
    const Job::Cluster& wanted = plan_.resolved.job.cluster;
    cluster::CoordinatorOptions coordinator;
    coordinator.listen = listen.ToText();
    coordinator.tls = !args_.insecure;
    if (coordinator.tls) {
      MOTLEY_ASSIGN_OR_RETURN(coordinator.identity, folder_.identity());
    }
    coordinator.tokens = &folder_.tokens();
    coordinator.min_workers = static_cast<int>(wanted.min_workers);
    coordinator.gloo = wanted.trusted_network;
    coordinator.heartbeat_seconds = wanted.heartbeat_seconds;
    coordinator.update_threads = options.update_threads;
    const auto tell = [&teller](const std::string& name, const std::string& message,
                                const Fields& fields) { teller.OnEvent(name, message, fields); };
    return cluster::Coordinator::Start(coordinator, MakeJob(plan_), plan_.prepared.model.graph,
                                       plan_.prepared.data, state, controller_, clock_,
                                       {.interrupt = interrupt, .on_event = tell});
  }

  // Tells people and scripts how to join.
  Status Invite(const Address& listen) {
    const std::string host = IsEveryAddress(listen.host) ? ReachableHost() : listen.host;
    const Place place{listen, {host, listen.port}, !args_.insecure};
    MOTLEY_RETURN_IF_ERROR(folder_.SavePlace(place));
    MOTLEY_ASSIGN_OR_RETURN(const cluster::JoinToken token,
                            IssueToken(folder_, place.tls, args_.token_hours));
    if (!args_.token_file.empty()) {
      MOTLEY_RETURN_IF_ERROR(cluster::WritePrivateFile(args_.token_file, token.ToText() + "\n"));
    }
    view_.Line(
        fmt::format("listening on {}{}; the token is valid for {:g} hours. To join, on any "
                    "machine:",
                    listen.ToText(), place.tls ? "" : ", WITHOUT ENCRYPTION", args_.token_hours));
    view_.Line(JoinLine(place.join, token));
    return {};
  }

  Result<cluster::WorkerOptions> OwnWorker(cluster::Coordinator& coordinator) {
    const Job& job = plan_.resolved.job;
    cluster::WorkerOptions options;
    options.channel = coordinator.InProcessChannel();
    MOTLEY_ASSIGN_OR_RETURN(options.token, IssueToken(folder_, !args_.insecure, args_.token_hours));
    MOTLEY_ASSIGN_OR_RETURN(options.data_cache, DataCache(environment_));
    options.name = job.device.name;
    options.host = HostName();
    options.device.threads = static_cast<int>(job.device.threads);
    options.device.kernel_cache = KernelCacheFile(environment_);
    options.loader_threads = static_cast<int>(job.data.threads);
    return options;
  }

  const ServeArgs& args_;
  const Environment& environment_;
  const TrainPlan& plan_;
  ProgressView& view_;
  const base::RealClock clock_;
  ClusterFolder folder_;
  plan::EqualShares controller_;
};

}  // namespace

Result<int> Serve(const ServeArgs& args, const Environment& environment) {
  // Streams come and go with their threads, and each thread would keep memory of its own: with the
  // default number of arenas the process grows with every worker that ever joined.
  ::mallopt(M_ARENA_MAX, 2);
  NoteCheckpointRequests();
  MOTLEY_ASSIGN_OR_RETURN(const std::optional<Address> given, GivenAddress(args));
  const base::RealClock clock;
  // With --json standard output belongs to the answer.
  ProgressView view(Console::Of(args.json ? stderr : stdout, environment), clock);
  MOTLEY_ASSIGN_OR_RETURN(const TrainPlan plan,
                          MakePlan(args.run, {.note_rounding = false}, environment, view));
  return Server(args, environment, plan, view).Run(given);
}

}  // namespace motley::app
