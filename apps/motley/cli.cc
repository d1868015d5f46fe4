#include "apps/motley/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "apps/motley/cluster_verbs.h"
#include "apps/motley/commands.h"
#include "apps/motley/suggest.h"
#include "apps/motley/version.h"

namespace motley::app {
namespace {

using base::Result;
using base::Status;

constexpr const char* kAbout =
    "Motley trains neural networks on this machine, and on all that join it.\n\n"
    "  motley train                 trains LeNet on MNIST: nothing to prepare\n"
    "  motley train job.toml        trains what the job file says; examples/ has some\n"
    "  motley serve job.toml        trains it with the machines that join, and prints how\n"
    "  motley export RUN --onnx net.onnx   takes the trained net elsewhere\n";

constexpr const char* kTrainExamples =
    "Examples:\n"
    "  motley train\n"
    "  motley train --set model.zoo=cifar_quick --set data.train=cifar:DIR\n"
    "  motley train job.toml --set train.batch=128 --out runs/small-batch\n"
    "  motley train job.toml --out runs/long --resume auto    (start, or go on after a stop)\n"
    "  motley train job.toml --dry-run\n\n"
    "Ctrl-C writes a checkpoint and stops; twice stops at once. SIGUSR1 writes a checkpoint.\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 4 stopped before the target.";

constexpr const char* kBenchExamples =
    "Example:\n"
    "  motley bench --model resnet18 --batch 64 --input 3x32x32 --classes 10 --threads 2";

constexpr const char* kExportExamples =
    "Example:\n"
    "  motley export runs/20260131-120000-lenet --onnx lenet.onnx";

struct AllArgs {
  TrainArgs train;
  SimulateArgs simulate;
  WhyArgs why;
  ClusterArgs cluster;
  ModelsArgs models;
  DataGetArgs data_get;
  ExportArgs exported;
  BenchArgs bench;
  DoctorArgs doctor;
};

void AddTrain(CLI::App& app, TrainArgs& args, const Environment& environment, Command& command) {
  CLI::App* verb = app.add_subcommand("train", "Train a network on this machine")->group("Train");
  AddRun(*verb, args.run);
  verb->add_flag("--dry-run", args.dry_run, "Check everything and show where each value came from");
  verb->add_flag("--help-keys", args.help_keys, "List every key of a job file");
  AddJson(*verb, args.json);
  verb->footer(kTrainExamples);
  verb->callback([&] { command = [&] { return Train(args, environment); }; });
}

void AddSimulate(CLI::App& app, SimulateArgs& args, const Environment& environment,
                 Command& command) {
  CLI::App* verb = app.add_subcommand("simulate",
                                      "Train the same job on a virtual clock: real gradients, "
                                      "modelled devices and network")
                       ->group("Train");
  AddRun(*verb, args.run);
  verb->add_flag("--time-only", args.time_only,
                 "Compute no gradients: how long it takes, and how stale updates are");
  verb->add_flag("--predict", args.predict,
                 "Run nothing: seconds per update by formula, for several numbers of groups, with "
                 "and without a merged head");
  AddJson(*verb, args.json);
  verb->callback([&] { command = [&] { return Simulate(args, environment); }; });
}

void AddWhy(CLI::App& app, WhyArgs& args, Command& command) {
  CLI::App* verb =
      app.add_subcommand("why", "Tell what was decided in a run, why, and what came of it")
          ->group("Train");
  verb->add_option("run", args.run, "The run directory; left out: the newest below runs/")
      ->type_name("DIR");
  AddJson(*verb, args.json);
  verb->callback([&] { command = [&] { return Why(args); }; });
}

void AddExport(CLI::App& app, ExportArgs& args, Command& command) {
  CLI::App* verb = app.add_subcommand("export", "Write a run's newest weights for other programs")
                       ->group("Train");
  verb->add_option("run", args.run, "The run directory")->required()->type_name("DIR");
  verb->add_option("--onnx", args.onnx, "Write an ONNX file for inference")->type_name("FILE");
  verb->add_option("--safetensors", args.safetensors, "Write the weights as safetensors")
      ->type_name("FILE");
  AddJson(*verb, args.json);
  verb->footer(kExportExamples);
  verb->callback([&] { command = [&] { return Export(args); }; });
}

void AddModels(CLI::App& app, ModelsArgs& args, Command& command) {
  CLI::App* verb =
      app.add_subcommand("models", "List the networks that can be named")->group("Look around");
  AddJson(*verb, args.json);
  verb->callback([&] { command = [&] { return Models(args); }; });
}

void AddData(CLI::App& app, DataGetArgs& args, const Environment& environment, Command& command) {
  CLI::App* verb = app.add_subcommand("data", "Datasets that can be named")->group("Look around");
  verb->require_subcommand(1);
  CLI::App* get = verb->add_subcommand("get", "Fetch a dataset into the cache, or check it there");
  get->add_option("name", args.name, "mnist")->required();
  AddJson(*get, args.json);
  get->callback([&] { command = [&] { return DataGet(args, environment); }; });
}

void AddBench(CLI::App& app, BenchArgs& args, const Environment& environment, Command& command) {
  CLI::App* verb =
      app.add_subcommand("bench", "Measure training speed against this machine's GEMM peak")
          ->group("Look around");
  verb->add_option("--model", args.model, "A network of `motley models`")->capture_default_str();
  verb->add_option("--batch", args.batch, "Images per step")->capture_default_str();
  verb->add_option("--input", args.input, "Image shape; left out: the authors' own")
      ->type_name("CxHxW");
  verb->add_option("--classes", args.classes, "Class count; left out: the authors' own");
  verb->add_option("--threads", args.threads, "Cores to use; left out: all");
  verb->add_option("--seconds", args.seconds, "How long to measure")->capture_default_str();
  verb->add_option(
          "--save", args.save,
          "Write the initial weights and the batch there, for other programs to start from")
      ->type_name("DIR");
  verb->add_flag("--no-dropout", args.no_dropout,
                 "Every dropout with probability 0, so that losses can be compared");
  verb->add_flag("--explain", args.explain, "Also why each convolution has the kernel that it has");
  verb->add_flag("--profile", args.profile,
                 "Also time, GFLOP/s and bytes/s of each layer and pass");
  AddJson(*verb, args.json);
  verb->footer(kBenchExamples);
  verb->callback([&] { command = [&] { return Bench(args, environment); }; });
}

void AddDoctor(CLI::App& app, DoctorArgs& args, const Environment& environment, Command& command) {
  CLI::App* verb =
      app.add_subcommand("doctor", "Check this machine, and say what to fix")->group("Look around");
  AddJson(*verb, args.json);
  verb->callback([&] { command = [&] { return Doctor(args, environment); }; });
}

// --dry_run is as good as --dry-run. Values stay as they are.
void AcceptSnakeCaseFlags(std::vector<std::string>& arguments) {
  for (std::string& argument : arguments) {
    if (argument == "--") return;
    if (!argument.starts_with("--")) continue;
    const auto end = argument.begin() +
                     static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
    std::replace(argument.begin(), end, '_', '-');
  }
}

// The parser only says that it did not expect the word.
bool RefuseUnknownVerb(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front().starts_with('-')) return false;
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  if (std::find(verbs.begin(), verbs.end(), arguments.front()) != verbs.end()) return false;
  const auto near = Nearest(arguments.front(), verbs);
  fmt::print(stderr, "motley: there is no verb '{}'\n  fix: {}\n", arguments.front(),
             near ? fmt::format("did you mean `motley {}`?", *near)
                  : fmt::format("the verbs are {}", fmt::join(verbs, ", ")));
  return true;
}

// What to do about arguments that the parser refused: the flag that was probably meant, or help.
std::string UsageFix(const CLI::App& app, const std::vector<std::string>& arguments) {
  const std::string name = arguments.front();
  const CLI::App* verb = name.starts_with('-') ? &app : app.get_subcommand(name);
  std::vector<std::string> flags;
  for (const CLI::Option* option : verb->get_options()) {
    for (const std::string& flag : option->get_lnames()) flags.push_back("--" + flag);
  }
  for (const std::string& argument : arguments) {
    const std::string flag = argument.substr(0, argument.find('='));
    if (!flag.starts_with("--") || std::find(flags.begin(), flags.end(), flag) != flags.end()) {
      continue;
    }
    if (const auto near = Nearest(flag, flags)) return fmt::format("did you mean {}?", *near);
  }
  return fmt::format("`motley {}--help` shows how it is used", verb == &app ? "" : name + " ");
}

int ExitCodeOf(const Status& status) {
  const bool users_input =
      status.code() == base::Code::kInvalidInput || status.code() == base::Code::kNotFound;
  return users_input ? kExitUsage : kExitFailed;
}

int Execute(const Command& command) {
  // Libraries may throw where we do not expect it, out of memory first of all.
  try {
    const Result<int> code = command();
    if (code.ok()) return *code;
    fmt::print(stderr, "motley: {}\n", code.status().ToString());
    return ExitCodeOf(code.status());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "motley: out of memory\n  fix: lower train.batch, or use a smaller model\n");
  } catch (const std::exception& error) {
    // Printing to a standard output that takes no more throws; that is reported at the end.
    if (!std::ferror(stdout)) {
      fmt::print(stderr, "motley: unexpected failure: {}\n", error.what());
    }
  }
  return kExitFailed;
}

// An answer that did not arrive is a failure, whatever became of the work.
int WithAnswerWritten(int code) {
  const bool flushed = std::fflush(stdout) == 0;
  const int error = errno;
  if (flushed && !std::ferror(stdout)) return code;
  fmt::print(stderr,
             "motley: standard output: cannot write: {}\n"
             "  fix: send it to a file on a disk with free space, or to a program that reads it\n",
             flushed ? "an earlier line was lost" : std::strerror(error));
  return code == kExitDone ? kExitFailed : code;
}

int Dispatch(std::vector<std::string> arguments, const Environment& environment) {
  CLI::App app(kAbout, "motley");
  app.set_version_flag("--version", std::string("motley ") + kVersion);
  app.require_subcommand(1);
  app.footer("`motley VERB --help` says more about each.");
  AllArgs args;
  Command command;
  AddTrain(app, args.train, environment, command);
  AddSimulate(app, args.simulate, environment, command);
  AddClusterVerbs(app, args.cluster, environment, command);
  AddWhy(app, args.why, command);
  AddExport(app, args.exported, command);
  AddModels(app, args.models, command);
  AddData(app, args.data_get, environment, command);
  AddBench(app, args.bench, environment, command);
  AddDoctor(app, args.doctor, environment, command);

  AcceptSnakeCaseFlags(arguments);
  if (arguments.empty()) {
    fmt::print(stderr, "{}", app.help());
    return kExitUsage;
  }
  if (RefuseUnknownVerb(app, arguments)) return kExitUsage;
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // as CLI11 wants it
  } catch (const CLI::Success& asked_for_help) {
    return app.exit(asked_for_help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "motley: {}\n  fix: {}\n", error.what(), UsageFix(app, arguments));
    return kExitUsage;
  }
  return Execute(command);
}

}  // namespace

int RunProgram(std::vector<std::string> arguments, const Environment& environment) {
  return WithAnswerWritten(Dispatch(std::move(arguments), environment));
}

}  // namespace motley::app
