#include <filesystem>
#include <optional>
#include <utility>

#include "apps/motley/address.h"
#include "apps/motley/commands.h"
#include "apps/motley/coordinator_access.h"
#include "apps/motley/data_spec.h"
#include "apps/motley/devices.h"
#include "apps/motley/launcher.h"
#include "apps/motley/prepare.h"
#include "apps/motley/signals.h"
#include "motley/base/clock.h"
#include "motley/cluster/worker.h"

namespace motley::app {
namespace {

using base::Result;
using cluster::WorkerReport;

void Say(std::FILE* out, const std::string& text) {
  fmt::print(out, "{}\n", text);
  std::fflush(out);
}

// What can be wrong with one flag, the parser has refused; this is what does not fit together.
base::Status CheckJoin(const JoinArgs& args) {
  if ((args.watts_idle < 0.0) != (args.watts_busy < 0.0)) {
    return base::InvalidInput("--watts-idle and --watts-busy go together");
  }
  if (args.watts_busy < args.watts_idle) {
    return base::InvalidInput("--watts-busy {} is less than --watts-idle {}", args.watts_busy,
                              args.watts_idle);
  }
  if (!args.cores.empty() && args.threads > 0) {
    return base::InvalidInput("--cores says how many threads there are: leave --threads out");
  }
  return {};
}

Job::Device DeviceOf(const JoinArgs& args) {
  Job::Device device;
  device.kind = args.kind;
  device.threads = args.threads;
  device.cores = args.cores;
  device.speed = args.speed;
  if (args.watts_idle >= 0.0) {
    device.watts_idle = args.watts_idle;
    device.watts_busy = args.watts_busy;
  }
  return device;
}

Result<cluster::WorkerOptions> MakeOptions(const JoinArgs& args, const Environment& environment) {
  MOTLEY_ASSIGN_OR_RETURN(const Address address, ParseAddress(args.coordinator.address));
  MOTLEY_ASSIGN_OR_RETURN(const std::optional<Launch> launch, LaunchOf(environment));
  cluster::WorkerOptions options;
  MOTLEY_ASSIGN_OR_RETURN(options.token, TokenOf(args.coordinator, environment));
  options.coordinator = address.ToText();
  options.host = HostName();
  options.name = args.name;
  if (launch) {
    options.rank = launch->rank;
    // Without a launcher the coordinator finds a better one: it knows the names of the others.
    if (args.name.empty()) options.name = fmt::format("{}-{}", options.host, launch->rank);
  }
  MOTLEY_RETURN_IF_ERROR(CheckJoin(args));
  const Job::Device device = DeviceOf(args);
  options.device.threads = ThreadsOf(device);
  options.device.kernel_cache = KernelCacheFile(environment);
  options.probe_cache = ProbeCacheFile(environment);
  options.device_name = fmt::format("{}, {} {}", args.kind, options.device.threads,
                                    options.device.threads == 1 ? "thread" : "threads");
  if (args.speed < 1.0) options.device_name += fmt::format(", emulated at {:g}", args.speed);
  options.make_device = [device](std::shared_ptr<const graph::Graph> graph,
                                 const engine::DeviceOptions& made) {
    static const base::RealClock clock;
    return MakeDevice(device, {.speed = device.speed, .slowdowns = {}}, graph, made, clock);
  };
  options.power = PowerOf(device);
  if (!args.private_data.empty()) {
    auto spec = DataSpecOf(args.private_data);
    if (!spec.ok()) {
      return base::InvalidInput("--private {}: there is no such folder or file", args.private_data)
          .WithFix("give a folder with the samples that stay on this machine");
    }
    options.private_data = *spec;
    options.private_place = "--private " + args.private_data;
  }
  MOTLEY_ASSIGN_OR_RETURN(options.data, DataSpecOf(args.data));
  // Without a place for datasets the samples come from the coordinator.
  const auto cache = DataCache(environment);
  if (cache.ok()) options.data_cache = *cache;
  options.retry_seconds = args.retry_seconds;
  return options;
}

void Answer(const WorkerReport& report, bool json) {
  const bool left = report.end == WorkerReport::End::kLeft;
  if (json) {
    fmt::print("{}\n", Dump({{"end", left ? "left" : "finished"},
                             {"reason", report.reason},
                             {"samples", report.samples}}));
    return;
  }
  const std::string words = left ? "left the job" : "the job has ended";
  fmt::print("{}{}; {} samples were computed here\n", words,
             report.reason.empty() ? "" : ": " + report.reason, Thousands(report.samples));
}

}  // namespace

Result<int> Join(const JoinArgs& args, const Environment& environment) {
  MOTLEY_ASSIGN_OR_RETURN(cluster::WorkerOptions options, MakeOptions(args, environment));
  // With --json standard output belongs to the answer.
  std::FILE* out = args.json ? stderr : stdout;
  options.on_note = [out](const std::string& message) { Say(out, message); };
  const SignalFlags& signals = HandleSignals(kLeave);
  const auto report = cluster::RunWorker(options, &signals.interrupt);
  if (report.ok()) {
    Answer(*report, args.json);
    return kExitDone;
  }
  if (report.status().code() == base::Code::kCancelled && signals.interrupt) {
    Answer({.end = WorkerReport::End::kLeft, .reason = {}, .samples = 0}, args.json);
    return kExitDone;
  }
  return OrLostCoordinator(report.status());
}

}  // namespace motley::app
