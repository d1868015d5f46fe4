#include <filesystem>
#include <optional>
#include <utility>

#include "apps/motley/address.h"
#include "apps/motley/commands.h"
#include "apps/motley/coordinator_access.h"
#include "apps/motley/data_spec.h"
#include "apps/motley/launcher.h"
#include "apps/motley/prepare.h"
#include "apps/motley/signals.h"
#include "motley/cluster/worker.h"

namespace motley::app {
namespace {

using base::Result;
using cluster::WorkerReport;

void Say(std::FILE* out, const std::string& text) {
  fmt::print(out, "{}\n", text);
  std::fflush(out);
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
  options.device.threads = args.threads;
  options.device.kernel_cache = KernelCacheFile(environment);
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
