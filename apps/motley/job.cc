#include "apps/motley/job.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "apps/motley/job_keys.h"
#include "apps/motley/job_toml.h"
#include "apps/motley/suggest.h"
#include "motley/base/file.h"

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

constexpr std::uint64_t kLargestJobFile = 1 << 20;

Status Take(const Key& key, std::size_t row, const Value& value, Origin origin,
            ResolvedJob& resolved) {
  MOTLEY_RETURN_IF_ERROR(Assign(key, value, resolved.job, row).In(origin.place));
  resolved.origins[key.full(row)] = std::move(origin);
  return {};
}

Status TakeText(const Key& key, std::string_view text, Origin origin, ResolvedJob& resolved) {
  auto value = ParseValue(key, text);
  if (!value.ok()) return std::move(value).status().In(origin.place);
  if (IsList(key.section) && Rows(resolved.job, key.section) > 1) {
    return InvalidInput("{}: the job has {} of [[{}]], and this does not say which", origin.place,
                        Rows(resolved.job, key.section), key.section)
        .WithFix("change it in the job file");
  }
  return Take(key, 0, *value, std::move(origin), resolved);
}

Status TakeFile(std::string_view toml, const std::string& file, ResolvedJob& resolved) {
  MOTLEY_ASSIGN_OR_RETURN(const TomlFile parsed, ParseToml(toml, file));
  for (const auto& [section, rows] : parsed.sections) AddRows(resolved.job, section, rows);
  for (const TomlEntry& entry : parsed.entries) {
    const Key* key = FindKey(entry.section, entry.name);
    if (key == nullptr) return UnknownKey(entry.section, entry.name).In(entry.place);
    MOTLEY_RETURN_IF_ERROR(
        Take(*key, entry.row, entry.value, {Source::kFile, entry.place}, resolved));
  }
  return {};
}

// A misspelt variable would be ignored without a word, so those that begin like a key are refused.
Status CheckVariableIsKnown(const std::string& variable) {
  std::vector<std::string> known;
  for (const Key& key : Keys()) known.push_back(key.variable());
  if (std::find(known.begin(), known.end(), variable) != known.end()) return {};
  for (const std::string& name : known) {
    const std::string section = name.substr(0, name.find('_', std::string("MOTLEY_").size()) + 1);
    if (!variable.starts_with(section)) continue;
    const auto near = Nearest(variable, known);
    return InvalidInput("environment {}: no key of a job has this name", variable)
        .WithFix(near ? fmt::format("did you mean {}?", *near)
                      : "`motley train --help-keys` lists every key; unset the variable");
  }
  return {};
}

Status TakeEnvironment(const std::map<std::string, std::string>& environment,
                       ResolvedJob& resolved) {
  for (const auto& [variable, value] : environment) {
    MOTLEY_RETURN_IF_ERROR(CheckVariableIsKnown(variable));
  }
  for (const Key& key : Keys()) {
    const auto found = environment.find(key.variable());
    if (found == environment.end() || found->second.empty()) continue;
    Origin origin{Source::kEnvironment, "environment " + found->first};
    MOTLEY_RETURN_IF_ERROR(TakeText(key, found->second, std::move(origin), resolved));
  }
  return {};
}

Status TakeSet(const std::string& set, ResolvedJob& resolved) {
  const std::size_t equals = set.find('=');
  const std::size_t dot = set.find('.');
  if (equals == std::string::npos || dot > equals) {
    return InvalidInput("--set {}: the form is section.key=value", set)
        .WithFix("for example --set train.batch=128");
  }
  const std::string section = set.substr(0, dot);
  const std::string name = set.substr(dot + 1, equals - dot - 1);
  const Key* key = FindKey(section, name);
  if (key == nullptr) return UnknownKey(section, name).In("--set " + set);
  return TakeText(*key, set.substr(equals + 1), {Source::kFlag, "--set " + key->full()}, resolved);
}

// A network is named once; a name of higher precedence replaces one of lower.
Status SettleModel(ResolvedJob& resolved) {
  Job::Model& model = resolved.job.model;
  if (model.onnx.empty()) {
    if (!model.zoo.empty()) return {};
    return InvalidInput("{}: no network is named", resolved.Place("model.zoo"))
        .WithFix("set model.zoo to a name of `motley models`, or model.onnx to a file");
  }
  const Source zoo = resolved.origin("model.zoo").source;
  const Source onnx = resolved.origin("model.onnx").source;
  if (zoo == onnx && !model.zoo.empty()) {
    return InvalidInput("{}: model.zoo names a network as well", resolved.Place("model.onnx"))
        .WithFix("keep one of model.zoo and model.onnx");
  }
  (zoo > onnx ? model.onnx : model.zoo).clear();
  return {};
}

Status CheckTogether(const ResolvedJob& resolved) {
  const Job& job = resolved.job;
  if (job.train.bn_batch > 0 && job.train.batch % job.train.bn_batch != 0) {
    return InvalidInput("{}: {} does not divide train.batch = {}", resolved.Place("train.bn_batch"),
                        job.train.bn_batch, job.train.batch)
        .WithFix("make train.batch a multiple of train.bn_batch");
  }
  if (job.data.mean.size() != job.data.std.size() && !job.data.mean.empty() &&
      !job.data.std.empty()) {
    return InvalidInput("{}: it has {} numbers, and data.mean {}", resolved.Place("data.std"),
                        job.data.std.size(), job.data.mean.size())
        .WithFix("give both one number per channel, or leave both out");
  }
  if (job.cluster.max_staleness > 0 && job.cluster.max_staleness < job.cluster.groups - 1) {
    return InvalidInput("{}: {} groups that read the same model are up to {} updates stale",
                        resolved.Place("cluster.max_staleness"), job.cluster.groups,
                        job.cluster.groups - 1)
        .WithFix(fmt::format("at least {}, or 0 for no bound", job.cluster.groups - 1));
  }
  const auto has_private = [](const Job::Device& device) { return !device.private_data.empty(); };
  if (job.cluster.merged_head && std::any_of(job.devices.begin(), job.devices.end(), has_private)) {
    return InvalidInput("{}: what the net makes of private samples would leave their device",
                        resolved.Place("cluster.merged_head"))
        .WithFix("leave it or device.private out");
  }
  const auto is_native = [](const Job::Device& device) { return device.kind == "native"; };
  if (job.cluster.merged_head && !std::all_of(job.devices.begin(), job.devices.end(), is_native)) {
    return InvalidInput("{}: only native devices can compute a part of a net",
                        resolved.Place("cluster.merged_head"))
        .WithFix("leave it out, or use kind = \"native\"");
  }
  if (job.cluster.groups > 1 && job.train.objective == "energy") {
    return InvalidInput("{}: objective = \"energy\" knows one group only",
                        resolved.Place("cluster.groups"))
        .WithFix("leave cluster.groups out, or use objective = \"time\"");
  }
  if (job.cluster.groups > 1 && job.train.tune == "auto" && job.train.nesterov) {
    return InvalidInput(
               "{}: the momentum of several groups is corrected for their staleness, which "
               "Nesterov's form does not allow",
               resolved.Place("train.nesterov"))
        .WithFix(
            "leave train.nesterov out, or set train.tune = \"shares\" to keep momentum as it is");
  }
  if (job.train.nesterov && job.train.momentum <= 0) {
    return InvalidInput("{}: Nesterov's form needs train.momentum above 0, not {}",
                        resolved.Place("train.nesterov"), job.train.momentum)
        .WithFix("set train.momentum, for example to 0.9, or leave train.nesterov out");
  }
  return {};
}

Status CheckDevice(const ResolvedJob& resolved, std::size_t row) {
  const Job::Device& device = resolved.job.devices[row];
  const auto place = [&](const char* key) {
    return resolved.Place(row == 0 ? fmt::format("device.{}", key)
                                   : fmt::format("device.{}.{}", row, key));
  };
  if (device.watts_idle.has_value() != device.watts_busy.has_value()) {
    return InvalidInput("{}: watts_idle and watts_busy go together",
                        place(device.watts_idle ? "watts_idle" : "watts_busy"))
        .WithFix("give both, or neither to have the energy measured where the machine can");
  }
  if (device.fixed_ms.has_value() != device.sample_ms.has_value()) {
    return InvalidInput("{}: fixed_ms and sample_ms go together",
                        place(device.fixed_ms ? "fixed_ms" : "sample_ms"))
        .WithFix("give both, or neither to have them measured");
  }
  if (device.watts_idle && *device.watts_busy < *device.watts_idle) {
    return InvalidInput("{}: {} W is less than watts_idle = {}", place("watts_busy"),
                        *device.watts_busy, *device.watts_idle);
  }
  if (resolved.job.train.objective == "energy" && !device.watts_busy) {
    return InvalidInput("{}: {} has no watts, and objective = \"energy\" needs them",
                        place("watts_busy"), device.name)
        .WithFix("give watts_idle and watts_busy of every device");
  }
  if (!device.cores.empty() && device.kind != "native") {
    return InvalidInput("{}: only native devices can be bound to cores", place("cores"))
        .WithFix("use threads");
  }
  if (!device.cores.empty() && device.threads > 0 &&
      device.threads != static_cast<std::int64_t>(device.cores.size())) {
    return InvalidInput("{}: {} cores, but threads = {}", place("cores"), device.cores.size(),
                        device.threads)
        .WithFix("leave threads out: there is one for every core");
  }
  for (const double core : device.cores) {
    if (core != std::floor(core)) {
      return InvalidInput("{}: {} is no number of a core", place("cores"), core);
    }
  }
  if (device.count > 1 && !device.private_data.empty() &&
      device.private_data.find("{i}") == std::string::npos) {
    return InvalidInput("{}: {} devices would have the same private samples", place("private"),
                        device.count)
        .WithFix("write {i} where the number of the device stands: \"data/csd-{i}\"");
  }
  return {};
}

Status CheckDevices(const ResolvedJob& resolved) {
  const Job& job = resolved.job;
  for (std::size_t row = 0; row < job.devices.size(); ++row) {
    MOTLEY_RETURN_IF_ERROR(CheckDevice(resolved, row));
  }
  const auto place = [&](std::size_t row, const char* key) {
    return resolved.Place(row == 0 ? fmt::format("device.{}", key)
                                   : fmt::format("device.{}.{}", row, key));
  };
  std::set<std::string> known;
  for (std::size_t row = 0; row < job.devices.size(); ++row) {
    Job alone;
    alone.devices = {job.devices[row]};
    for (const Job::Device& device : DevicesOf(alone)) {
      if (known.insert(device.name).second) continue;
      return InvalidInput("{}: two devices are named '{}'", place(row, "name"), device.name)
          .WithFix("give every [[device]] a name of its own");
    }
  }
  if (known.empty()) known.insert(Job::Device().name);
  for (std::size_t row = 0; row < job.interruptions.size(); ++row) {
    const std::string key =
        row == 0 ? "interruption.device" : fmt::format("interruption.{}.device", row);
    if (known.contains(job.interruptions[row].device)) continue;
    return InvalidInput("{}: no device is named '{}'", resolved.Place(key),
                        job.interruptions[row].device)
        .WithFix(fmt::format("the devices are {}", fmt::join(known, ", ")));
  }
  if (job.train.deadline_seconds && job.train.objective != "energy") {
    return InvalidInput("{}: it belongs to objective = \"energy\"",
                        resolved.Place("train.deadline_seconds"))
        .WithFix("set train.objective, or use train.max_seconds to stop after a time");
  }
  return {};
}

Result<ResolvedJob> Settle(ResolvedJob resolved) {
  MOTLEY_RETURN_IF_ERROR(SettleModel(resolved));
  MOTLEY_RETURN_IF_ERROR(CheckDevices(resolved));
  MOTLEY_RETURN_IF_ERROR(CheckTogether(resolved));
  return resolved;
}

}  // namespace

std::optional<std::int64_t> EpochLimit(const Job& job) {
  const bool other_goal = job.train.target_accuracy || job.train.max_seconds;
  if (job.train.epochs || other_goal) return job.train.epochs;
  return kDefaultEpochs;
}

std::string ScheduleText(const Job& job) {
  if (job.train.schedule != kAutoSchedule) return job.train.schedule;
  const auto epochs = EpochLimit(job);
  return epochs ? fmt::format("cosine:{}", *epochs) : "constant";
}

std::vector<Job::Device> DevicesOf(const Job& job) {
  if (job.devices.empty()) return {Job::Device()};
  std::vector<Job::Device> all;
  for (const Job::Device& listed : job.devices) {
    for (std::int64_t i = 0; i < listed.count; ++i) {
      Job::Device device = listed;
      device.count = 1;
      if (listed.count > 1) device.name += fmt::format("-{}", i);
      if (const auto at = device.private_data.find("{i}"); at != std::string::npos) {
        device.private_data.replace(at, 3, std::to_string(i));
      }
      all.push_back(std::move(device));
    }
  }
  return all;
}

std::string_view SourceName(Source source) {
  switch (source) {
    case Source::kDefault:
      return "default";
    case Source::kFile:
      return "job file";
    case Source::kEnvironment:
      return "environment";
    case Source::kFlag:
      return "flag";
  }
  return "";
}

Origin ResolvedJob::origin(const std::string& key) const {
  const auto found = origins.find(key);
  return found == origins.end() ? Origin{} : found->second;
}

std::string ResolvedJob::Place(const std::string& key) const {
  const Origin from = origin(key);
  // "device.2.threads" is written device.threads.
  const std::size_t first = key.find('.'), last = key.rfind('.');
  const std::string shown = key.substr(0, first) + key.substr(last);
  if (from.source == Source::kDefault) return shown + " (default)";
  // "--set train.batch" names the key already.
  return from.source == Source::kFlag ? from.place : from.place + ": " + shown;
}

Result<ResolvedJob> LoadJob(const JobSources& sources) {
  ResolvedJob resolved;
  if (!sources.file.empty()) {
    auto toml = base::ReadFile(sources.file, kLargestJobFile);
    if (!toml.ok()) {
      return std::move(toml).status().WithFix(
          "give the path of a job file, or none to train the default job; examples/ has some");
    }
    MOTLEY_RETURN_IF_ERROR(TakeFile(*toml, sources.file, resolved));
  }
  MOTLEY_RETURN_IF_ERROR(TakeEnvironment(sources.environment, resolved));
  for (const std::string& set : sources.sets) {
    MOTLEY_RETURN_IF_ERROR(TakeSet(set, resolved));
  }
  return Settle(std::move(resolved));
}

Result<ResolvedJob> ParseJob(std::string_view toml, const std::string& origin) {
  ResolvedJob resolved;
  MOTLEY_RETURN_IF_ERROR(TakeFile(toml, origin, resolved));
  return Settle(std::move(resolved));
}

std::string ToToml(const Job& job) {
  std::string toml;
  for (const std::string_view section : Sections()) {
    for (std::size_t row = 0; row < Rows(job, section); ++row) {
      toml += IsList(section) ? fmt::format("[[{}]]\n", section) : fmt::format("[{}]\n", section);
      for (const Key& key : Keys()) {
        const std::string value = key.section == section ? FormatValue(key, job, row) : "";
        if (!value.empty()) toml += fmt::format("{} = {}\n", key.name, value);
      }
      toml += "\n";
    }
  }
  return toml;
}

}  // namespace motley::app
