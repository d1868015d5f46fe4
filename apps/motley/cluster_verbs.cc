#include "apps/motley/cluster_verbs.h"

#include <CLI/CLI.hpp>
#include <string>

namespace motley::app {
namespace {

constexpr const char* kGroup = "Train on many machines";

constexpr const char* kServeExamples =
    "Examples:\n"
    "  motley serve job.toml                    (prints the `motley join …` for other machines)\n"
    "  motley serve job.toml --set cluster.min_workers=4 --out runs/four\n"
    "  motley serve --resume runs/four          (workers that still wait come back by themselves)\n"
    "\n"
    "This machine computes only if the job lists a [[device]]. Ctrl-C writes a checkpoint and\n"
    "stops; twice stops at once. SIGUSR1 writes a checkpoint.\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 4 stopped before the target.";

constexpr const char* kJoinExamples =
    "Examples:\n"
    "  motley join node1:7600 --token motley1-…\n"
    "  srun motley join node1:7600 --token-file ~/token     (named by host and rank)\n"
    "\n"
    "Ctrl-C or SIGTERM hands the work back and leaves; twice stops at once.\n"
    "Exit codes: 0 the job is done, or left on demand; 1 failed; 2 wrong usage, or not let in;\n"
    "3 the coordinator cannot be reached.";

constexpr double kLongestHours = 87600.0;  // ten years
constexpr double kLongestRetry = 1e9;

void AddHours(CLI::App& verb, const std::string& flag, double& hours) {
  verb.add_option(flag, hours, "How long the token can be used to join")
      ->check(CLI::Range(0.001, kLongestHours))
      ->capture_default_str();
}

void AddCoordinator(CLI::App& verb, CoordinatorArgs& args) {
  verb.add_option("coordinator", args.address, "Where `motley serve` listens")
      ->required()
      ->type_name("HOST:PORT");
  CLI::Option* token =
      verb.add_option("--token", args.token, "What it printed; left out: the variable MOTLEY_TOKEN")
          ->type_name("T");
  verb.add_option("--token-file", args.token_file, "A file that holds the token")
      ->type_name("FILE")
      ->excludes(token);
}

void AddServe(CLI::App& app, ServeArgs& args, const Environment& environment, Command& command) {
  CLI::App* verb = app.add_subcommand("serve", "Train with the machines that join")->group(kGroup);
  AddRun(*verb, args.run);
  verb->add_option("--listen", args.listen,
                   "Left out: where a resumed run listened before, or 0.0.0.0:7600, or another "
                   "port if that is taken")
      ->type_name("HOST:PORT");
  AddHours(*verb, "--token-hours", args.token_hours);
  verb->add_option("--token-file", args.token_file,
                   "Also write the token there, for its owner only")
      ->type_name("FILE");
  CLI::Option* insecure = verb->add_flag(
      "--insecure", args.insecure, "No TLS; listens on 127.0.0.1 unless --listen says otherwise");
  verb->add_flag("--insecure-anywhere", args.insecure_anywhere,
                 "Allow --insecure on addresses that other machines reach")
      ->needs(insecure);
  AddJson(*verb, args.json);
  verb->footer(kServeExamples);
  verb->callback([&] { command = [&] { return Serve(args, environment); }; });
}

void AddJoin(CLI::App& app, JoinArgs& args, const Environment& environment, Command& command) {
  CLI::App* verb =
      app.add_subcommand("join", "Work for a coordinator on this machine")->group(kGroup);
  AddCoordinator(*verb, args.coordinator);
  verb->add_option("--threads", args.threads, "Cores to use; 0: all that this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  verb->add_option("--kind", args.kind, "native, torch:cpu or torch:cuda:N")->capture_default_str();
  verb->add_option("--cores", args.cores, "The numbers of the cores to use, instead of --threads")
      ->delimiter(',')
      ->check(CLI::Range(0, 65535));
  verb->add_option("--speed", args.speed, "Emulate a device that has so much of this one's speed")
      ->check(CLI::Range(0.0001, 1.0))
      ->capture_default_str();
  verb->add_option("--watts-idle", args.watts_idle,
                   "Power while it waits, for estimates; left out: measured where there are meters")
      ->check(CLI::Range(0.0, 1e6));
  verb->add_option("--watts-busy", args.watts_busy, "Power while it computes")
      ->check(CLI::Range(0.0, 1e6));
  verb->add_option("--private", args.private_data,
                   "Samples that only this machine trains on and that never leave it: a folder, an "
                   "archive, or a form of data.train")
      ->type_name("DATA");
  verb->add_option("--name", args.name,
                   "Name in reports; left out: HOST-RANK of the launcher, or a free one");
  verb->add_option("--data", args.data,
                   "A copy of the job's data: a folder, an archive, or a form of data.train; left "
                   "out: what the job names, if it is here. Without a copy the coordinator sends "
                   "the samples")
      ->type_name("DATA");
  verb->add_option("--retry-seconds", args.retry_seconds,
                   "How long to go on trying when the coordinator cannot be reached")
      ->check(CLI::Range(0.0, kLongestRetry))
      ->capture_default_str();
  AddJson(*verb, args.json);
  verb->footer(kJoinExamples);
  verb->callback([&] { command = [&] { return Join(args, environment); }; });
}

void AddStatus(CLI::App& app, StatusArgs& args, const Environment& environment, Command& command) {
  CLI::App* verb = app.add_subcommand("status", "Show the members of a running job")->group(kGroup);
  AddCoordinator(*verb, args.coordinator);
  AddJson(*verb, args.json);
  verb->callback([&] { command = [&] { return ShowStatus(args, environment); }; });
}

void AddToken(CLI::App& app, TokenArgs& args, Command& command) {
  CLI::App* verb =
      app.add_subcommand("token", "Say who may join a run that is served")->group(kGroup);
  verb->require_subcommand(1);
  const auto add = [&](const char* name, const char* about,
                       base::Result<int> (*run)(const TokenArgs&)) {
    CLI::App* part = verb->add_subcommand(name, about);
    part->add_option("run", args.run, "The run directory")->required()->type_name("DIR");
    AddJson(*part, args.json);
    part->callback([&args, &command, run] { command = [&args, run] { return run(args); }; });
    return part;
  };
  AddHours(*add("new", "Issue a token and print how to join with it", NewToken), "--hours",
           args.hours);
  add("list", "List the tokens that were issued", ListTokens);
  add("revoke", "Let nobody join with a token any more", RevokeToken)
      ->add_option("id", args.id, "As the list shows it")
      ->required();
}

}  // namespace

void AddClusterVerbs(CLI::App& app, ClusterArgs& args, const Environment& environment,
                     Command& command) {
  AddServe(app, args.serve, environment, command);
  AddJoin(app, args.join, environment, command);
  AddStatus(app, args.status, environment, command);
  AddToken(app, args.token, command);
}

void AddRun(CLI::App& verb, RunArgs& args) {
  verb.add_option("job", args.job, "A job file (TOML); left out: LeNet on MNIST");
  verb.add_option("--set", args.sets, "Set one key of the job; may be repeated")
      ->type_name("SECTION.KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  verb.add_option("--out", args.out, "Run directory; left out: runs/DATE-TIME-MODEL")
      ->type_name("DIR");
  verb.add_option("--resume", args.resume,
                  "Go on with the run in DIR; auto: with that of --out, or the newest below "
                  "runs/, if it has a checkpoint")
      ->type_name("DIR|auto");
}

void AddJson(CLI::App& verb, bool& json) {
  verb.add_flag("--json", json, "Answer in JSON on standard output");
}

}  // namespace motley::app
