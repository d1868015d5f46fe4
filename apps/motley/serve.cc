#include <malloc.h>
#include <sys/resource.h>

#include <optional>
#include <utility>

#include "apps/motley/address.h"
#include "apps/motley/cluster_folder.h"
#include "apps/motley/cluster_run.h"
#include "apps/motley/commands.h"
#include "apps/motley/progress.h"
#include "apps/motley/signals.h"
#include "apps/motley/train_plan.h"
#include "motley/base/clock.h"

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

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

// Every worker has two connections, and the usual limit of 1024 is there for programs that count on
// small numbers, as none of ours do.
void AllowManyConnections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);  // it stays as it was: fewer may come
}

// Tells people and scripts how to join.
Status Invite(const ServeArgs& args, ClusterFolder& folder, const Address& listen,
              ProgressView& view) {
  const std::string host = IsEveryAddress(listen.host) ? ReachableHost() : listen.host;
  const Place place{listen, {host, listen.port}, !args.insecure};
  MOTLEY_RETURN_IF_ERROR(folder.SavePlace(place));
  MOTLEY_ASSIGN_OR_RETURN(const cluster::JoinToken token,
                          IssueToken(folder, place.tls, args.token_hours));
  if (!args.token_file.empty()) {
    MOTLEY_RETURN_IF_ERROR(cluster::WritePrivateFile(args.token_file, token.ToText() + "\n"));
  }
  view.Line(
      fmt::format("listening on {}{}; the token is valid for {:g} hours. To join, on any "
                  "machine:",
                  listen.ToText(), place.tls ? "" : ", WITHOUT ENCRYPTION", args.token_hours));
  view.Line(JoinLine(place.join, token));
  return {};
}

}  // namespace

Result<int> Serve(const ServeArgs& args, const Environment& environment) {
  // Streams come and go with their threads, and each thread would keep memory of its own: with the
  // default number of arenas the process grows with every worker that ever joined.
  ::mallopt(M_ARENA_MAX, 2);
  AllowManyConnections();
  NoteCheckpointRequests();
  MOTLEY_ASSIGN_OR_RETURN(const std::optional<Address> given, GivenAddress(args));
  const base::RealClock clock;
  // With --json standard output belongs to the answer.
  ProgressView view(Console::Of(args.json ? stderr : stdout, environment), clock);
  MOTLEY_ASSIGN_OR_RETURN(const TrainPlan plan,
                          MakePlan(args.run, {.note_rounding = false}, environment, view));
  ClusterFolder folder(plan.files.cluster());
  // Everything that can be wrong is looked at before the run directory is made.
  MOTLEY_ASSIGN_OR_RETURN(const std::optional<Place> before, folder.LoadPlace());
  MOTLEY_ASSIGN_OR_RETURN(const Address listen, ChooseAddress(args, given, before));
  cluster::CoordinatorOptions options;
  options.listen = listen.ToText();
  options.tls = !args.insecure;
  ClusterRun run{.plan = plan,
                 .environment = environment,
                 .view = view,
                 .folder = folder,
                 .command = args.insecure ? "motley serve --insecure" : "motley serve",
                 .json = args.json,
                 .options = std::move(options),
                 .on_listening = [&](int port) {
                   return Invite(args, folder, {listen.host, port}, view);
                 }};
  return run.Run();
}

}  // namespace motley::app
