#include "apps/motley/job_keys.h"

#include <algorithm>
#include <cctype>

#include "apps/motley/suggest.h"
#include "motley/optim/schedule.h"
#include "motley/sim/service.h"

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Status;

// Far beyond any machine, and small enough that products of two stay exact in a double.
constexpr double kMany = 1 << 20;
constexpr double kLongTime = 1e9;
constexpr double kLargestSeed = 9007199254740992.0;  // 2^53

Status CheckSchedule(const std::string& text) {
  if (text == kAutoSchedule) return {};
  return optim::Schedule::Parse(text).status();
}

Status CheckKind(const std::string& text) {
  if (text == "native" || text == "torch:cpu") return {};
  constexpr std::string_view kCuda = "torch:cuda:";
  const std::string number = text.substr(std::min(text.size(), kCuda.size()));
  const bool digits = !number.empty() && number.size() <= 3 &&
                      number.find_first_not_of("0123456789") == std::string::npos;
  if (text.starts_with(kCuda) && digits) return {};
  return InvalidInput("'{}' is no kind of device", text.substr(0, 60))
      .WithFix("use native, torch:cpu or torch:cuda:0");
}

// One of a few words.
Status CheckWord(const std::string& text, const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), text) != words.end()) return {};
  return InvalidInput("'{}' is none of {}", text.substr(0, 60), fmt::join(words, ", "));
}

Status CheckTune(const std::string& text) {
  return CheckWord(text, {"off", "once", "shares", "auto"});
}

Status CheckObjective(const std::string& text) { return CheckWord(text, {"time", "energy"}); }

Status CheckNotEmpty(const std::string& text) {
  return text.empty() ? InvalidInput("may not be empty") : Status();
}

// The name of a worker, as a coordinator takes it.
Status CheckName(const std::string& text) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  };
  if (!text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), fits)) return {};
  return InvalidInput("'{}' is no name", text.substr(0, 64))
      .WithFix("use letters, digits, '.', '_' and '-', at most 64");
}

// clang-format off
const std::vector<Key> kKeys = {
    {"model", "zoo", [](Job& j, std::size_t) -> Field { return &j.model.zoo; },
     "a network by name; `motley models` lists them"},
    {"model", "onnx", [](Job& j, std::size_t) -> Field { return &j.model.onnx; },
     "an ONNX file, instead of zoo; its weights are where training starts"},
    {"model", "weights", [](Job& j, std::size_t) -> Field { return &j.model.weights; },
     "a safetensors file with the weights to start from"},

    {"data", "train", [](Job& j, std::size_t) -> Field { return &j.data.train; },
     "mnist | idx:DIR | cifar:DIR | images:DIR|FILE.tar[.gz] | glyphs", {}, CheckNotEmpty},
    {"data", "test", [](Job& j, std::size_t) -> Field { return &j.data.test; },
     "the same forms; left out: the set's own test part"},
    {"data", "resize", [](Job& j, std::size_t) -> Field { return &j.data.resize; },
     "size that every image of images: gets first", {1, 4096}},
    {"data", "pad", [](Job& j, std::size_t) -> Field { return &j.data.pad; },
     "pixels of zeros around each image, before the crop", {0, 1024}},
    {"data", "crop", [](Job& j, std::size_t) -> Field { return &j.data.crop; },
     "random crop in training, centred in the test; left out: the whole image", {1, 4096}},
    {"data", "flip", [](Job& j, std::size_t) -> Field { return &j.data.flip; },
     "mirror half of the training images"},
    {"data", "mean", [](Job& j, std::size_t) -> Field { return &j.data.mean; },
     "per channel, of pixel / 255; left out: measured on the training set", {-100, 100}},
    {"data", "std", [](Job& j, std::size_t) -> Field { return &j.data.std; },
     "per channel, of pixel / 255; left out: measured on the training set", {0, 100, true}},
    {"data", "threads", [](Job& j, std::size_t) -> Field { return &j.data.threads; },
     "threads that decode and augment ahead of the device", {1, 256}},

    {"train", "batch", [](Job& j, std::size_t) -> Field { return &j.train.batch; },
     "samples per step", {1, kMany}},
    {"train", "learning_rate", [](Job& j, std::size_t) -> Field { return &j.train.learning_rate; },
     "step size of an update, before the schedule", {0, 1e6, true}},
    {"train", "momentum", [](Job& j, std::size_t) -> Field { return &j.train.momentum; },
     "how much of the last update is kept; may be negative", {-1, 1, true}},
    {"train", "nesterov", [](Job& j, std::size_t) -> Field { return &j.train.nesterov; },
     "Nesterov's form of momentum"},
    {"train", "weight_decay", [](Job& j, std::size_t) -> Field { return &j.train.weight_decay; },
     "added to the gradient, times the weights", {0, 1}},
    {"train", "schedule", [](Job& j, std::size_t) -> Field { return &j.train.schedule; },
     "auto (cosine over the epochs, if known) | constant | step:E1,E2,…[:FACTOR] | cosine:E", {}, CheckSchedule},
    {"train", "warmup_steps", [](Job& j, std::size_t) -> Field { return &j.train.warmup_steps; },
     "steps over which the learning rate rises from 0", {0, kLongTime}},
    {"train", "epochs", [](Job& j, std::size_t) -> Field { return &j.train.epochs; },
     "stop after so many passes; 5 when no goal is given", {1, kLongTime}},
    {"train", "target_accuracy", [](Job& j, std::size_t) -> Field { return &j.train.target_accuracy; },
     "stop when the test accuracy reaches it (0.99 is 99 %)", {0, 1}},
    {"train", "max_seconds", [](Job& j, std::size_t) -> Field { return &j.train.max_seconds; },
     "stop after so much training time", {0, kLongTime, true}},
    {"train", "tune", [](Job& j, std::size_t) -> Field { return &j.train.tune; },
     "off: equal shares | once: balanced at the start | shares: and kept so | auto: all that this version can", {}, CheckTune},
    {"train", "objective", [](Job& j, std::size_t) -> Field { return &j.train.objective; },
     "time: as fast as possible | energy: with the fewest joules", {}, CheckObjective},
    {"train", "deadline_seconds", [](Job& j, std::size_t) -> Field { return &j.train.deadline_seconds; },
     "with objective = \"energy\": be done by then, if that is possible", {0, kLongTime, true}},
    {"train", "bn_batch", [](Job& j, std::size_t) -> Field { return &j.train.bn_batch; },
     "batch norm over so many samples; 0: over the whole batch", {0, kMany}},
    {"train", "seed", [](Job& j, std::size_t) -> Field { return &j.train.seed; },
     "of every random choice", {0, kLargestSeed}},

    {"device", "name", [](Job& j, std::size_t i) -> Field { return &j.devices[i].name; },
     "its name in reports", {}, CheckName},
    {"device", "count", [](Job& j, std::size_t i) -> Field { return &j.devices[i].count; },
     "so many of the same: name-0, name-1, …", {1, 1024}},
    {"device", "kind", [](Job& j, std::size_t i) -> Field { return &j.devices[i].kind; },
     "native: this machine's CPU | torch:cpu, torch:cuda:N: LibTorch, if this build has it", {}, CheckKind},
    {"device", "threads", [](Job& j, std::size_t i) -> Field { return &j.devices[i].threads; },
     "cores to compute with; 0: all that this process may use", {0, 1024}},
    {"device", "cores", [](Job& j, std::size_t i) -> Field { return &j.devices[i].cores; },
     "instead of threads: the numbers of the cores", {0, 65535}},
    {"device", "speed", [](Job& j, std::size_t i) -> Field { return &j.devices[i].speed; },
     "emulated: so much of the device's own speed", {0.0001, 1}},
    {"device", "watts_idle", [](Job& j, std::size_t i) -> Field { return &j.devices[i].watts_idle; },
     "power while it waits, for estimates; left out with watts_busy: measured, if the machine has meters", {0, kMany}},
    {"device", "watts_busy", [](Job& j, std::size_t i) -> Field { return &j.devices[i].watts_busy; },
     "power while it computes", {0, kMany}},
    {"device", "service", [](Job& j, std::size_t i) -> Field { return &j.devices[i].service; },
     "how its steps vary on the virtual clock: constant | exponential | lognormal:SIGMA | trace:FILE", {}, sim::Service::Check},
    {"device", "bandwidth_gbit", [](Job& j, std::size_t i) -> Field { return &j.devices[i].bandwidth_gbit; },
     "of its own link, on the virtual clock; left out: that of [network]", {0, kMany, true}},
    {"device", "fixed_ms", [](Job& j, std::size_t i) -> Field { return &j.devices[i].fixed_ms; },
     "what a step costs at full speed, on the virtual clock; left out: measured", {0, 1e9}},
    {"device", "sample_ms", [](Job& j, std::size_t i) -> Field { return &j.devices[i].sample_ms; },
     "and what a sample costs", {0, 1e9, true}},
    {"device", "streamed", [](Job& j, std::size_t i) -> Field { return &j.devices[i].streamed; },
     "it has no copy of data.train: its public samples are moved and counted, on the virtual clock"},
    {"device", "fails_at_seconds", [](Job& j, std::size_t i) -> Field { return &j.devices[i].fails_at_seconds; },
     "it is lost then, on the virtual clock", {0, kLongTime}},
    {"device", "private", [](Job& j, std::size_t i) -> Field { return &j.devices[i].private_data; },
     "samples that never leave this device: a folder, or a form of data.train; {i} is its number"},

    {"interruption", "device", [](Job& j, std::size_t i) -> Field { return &j.interruptions[i].device; },
     "the emulated device that another program slows down", {}, CheckNotEmpty},
    {"interruption", "at_seconds", [](Job& j, std::size_t i) -> Field { return &j.interruptions[i].at_seconds; },
     "when it begins, from the start of this process", {0, kLongTime}},
    {"interruption", "for_seconds", [](Job& j, std::size_t i) -> Field { return &j.interruptions[i].for_seconds; },
     "how long it lasts", {0, kLongTime, true}},
    {"interruption", "slowdown", [](Job& j, std::size_t i) -> Field { return &j.interruptions[i].slowdown; },
     "4: a quarter of the speed is left", {1, 10000}},

    {"cluster", "groups", [](Job& j, std::size_t) -> Field { return &j.cluster.groups; },
     "devices form so many groups, which do not wait for each other; 1: all work on one batch", {1, 1024}},
    {"cluster", "max_staleness", [](Job& j, std::size_t) -> Field { return &j.cluster.max_staleness; },
     "an update that would make another group's staler than this waits; 0: no bound", {0, 1e6}},
    {"cluster", "merged_head", [](Job& j, std::size_t) -> Field { return &j.cluster.merged_head; },
     "the coordinator computes the fully connected head for all devices: for nets with most weights there"},
    {"cluster", "shards", [](Job& j, std::size_t) -> Field { return &j.cluster.shards; },
     "the model is cut into so many ranges; workers of `motley serve` hold all but the first", {1, 64}},
    {"cluster", "min_workers", [](Job& j, std::size_t) -> Field { return &j.cluster.min_workers; },
     "`motley serve` begins when so many workers are there", {1, 1 << 16}},
    {"cluster", "trusted_network", [](Job& j, std::size_t) -> Field { return &j.cluster.trusted_network; },
     "gradients go from worker to worker, unencrypted (Gloo); false: through TLS"},
    {"cluster", "heartbeat_seconds", [](Job& j, std::size_t) -> Field { return &j.cluster.heartbeat_seconds; },
     "a worker that is silent for two of these is lost", {0.05, 3600}},

    {"network", "bandwidth_gbit", [](Job& j, std::size_t) -> Field { return &j.network.bandwidth_gbit; },
     "of a device's link, on the virtual clock", {0, kMany, true}},
    {"network", "latency_us", [](Job& j, std::size_t) -> Field { return &j.network.latency_us; },
     "of a message, on the virtual clock", {0, 1e9}},
    {"network", "server_ms", [](Job& j, std::size_t) -> Field { return &j.network.server_ms; },
     "what the model server needs for an update of one of several groups, on the virtual clock", {0, 1e9}},
    {"network", "joules_per_gigabyte", [](Job& j, std::size_t) -> Field { return &j.network.joules_per_gigabyte; },
     "what moving data costs, for the account of energy", {0, kMany}},

    {"checkpoint", "every_seconds", [](Job& j, std::size_t) -> Field { return &j.checkpoint.every_seconds; },
     "at most so much work is lost by a kill", {0, kLongTime, true}},
    {"checkpoint", "keep", [](Job& j, std::size_t) -> Field { return &j.checkpoint.keep; },
     "how many of the newest checkpoints stay", {1, 10000}},
};
// clang-format on

}  // namespace

std::string Key::variable() const {
  std::string variable = "MOTLEY_" + std::string(section) + "_" + std::string(name);
  std::transform(variable.begin(), variable.end(), variable.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return variable;
}

const std::vector<Key>& Keys() { return kKeys; }

const std::vector<std::string_view>& Sections() {
  static const std::vector<std::string_view> sections = [] {
    std::vector<std::string_view> names;
    for (const Key& key : kKeys) {
      if (names.empty() || names.back() != key.section) names.push_back(key.section);
    }
    return names;
  }();
  return sections;
}

std::string Key::full(std::size_t row) const {
  return row == 0 ? fmt::format("{}.{}", section, name)
                  : fmt::format("{}.{}.{}", section, row, name);
}

bool IsList(std::string_view section) { return section == "device" || section == "interruption"; }

std::size_t Rows(const Job& job, std::string_view section) {
  if (section == "device") return job.devices.size();
  return section == "interruption" ? job.interruptions.size() : 1;
}

void AddRows(Job& job, std::string_view section, std::size_t rows) {
  if (section == "device" && job.devices.size() < rows) job.devices.resize(rows);
  if (section == "interruption" && job.interruptions.size() < rows) job.interruptions.resize(rows);
}

const Key* FindKey(std::string_view section, std::string_view name) {
  std::string snake(name);
  std::replace(snake.begin(), snake.end(), '-', '_');
  const auto found = std::find_if(kKeys.begin(), kKeys.end(), [&](const Key& key) {
    return key.section == section && key.name == snake;
  });
  return found == kKeys.end() ? nullptr : &*found;
}

Status UnknownKey(std::string_view section, std::string_view name) {
  const std::string full =
      section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
  const Status unknown = InvalidInput("unknown key {}", full.substr(0, 200));
  std::vector<std::string> all, siblings;
  for (const Key& key : kKeys) {
    if (key.name == name) {
      return Status(unknown).WithFix(
          fmt::format("did you mean {}? ({} belongs to {})", key.full(), key.name, key.section));
    }
    all.push_back(key.full());
    if (key.section == section) siblings.emplace_back(key.name);
  }
  if (const auto near = Nearest(name, siblings)) {
    return Status(unknown).WithFix(fmt::format("did you mean {}.{}?", section, *near));
  }
  if (siblings.empty()) {
    if (const auto near = Nearest(full, all)) {
      return Status(unknown).WithFix(fmt::format("did you mean {}?", *near));
    }
  } else {
    return Status(unknown).WithFix(
        fmt::format("{} has these keys: {}", section, fmt::join(siblings, ", ")));
  }
  return Status(unknown).WithFix(
      fmt::format("the sections are {}; `motley train --help-keys` lists every key",
                  fmt::join(Sections(), ", ")));
}

}  // namespace motley::app
