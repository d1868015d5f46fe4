#include "apps/motley/job.h"

#include <algorithm>
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
constexpr std::string_view kDeviceSection = "device";

Status Take(const Key& key, const Value& value, Origin origin, ResolvedJob& resolved) {
  MOTLEY_RETURN_IF_ERROR(Assign(key, value, resolved.job).In(origin.place));
  if (key.section == kDeviceSection) resolved.job.device.listed = true;
  resolved.origins[key.full()] = std::move(origin);
  return {};
}

Status TakeText(const Key& key, std::string_view text, Origin origin, ResolvedJob& resolved) {
  auto value = ParseValue(key, text);
  if (!value.ok()) return std::move(value).status().In(origin.place);
  return Take(key, *value, std::move(origin), resolved);
}

Status TakeFile(std::string_view toml, const std::string& file, ResolvedJob& resolved) {
  MOTLEY_ASSIGN_OR_RETURN(const TomlFile parsed, ParseToml(toml, file));
  for (const std::string& section : parsed.sections) {
    if (section == kDeviceSection) resolved.job.device.listed = true;
  }
  for (const TomlEntry& entry : parsed.entries) {
    const Key* key = FindKey(entry.section, entry.name);
    if (key == nullptr) return UnknownKey(entry.section, entry.name).In(entry.place);
    MOTLEY_RETURN_IF_ERROR(Take(*key, entry.value, {Source::kFile, entry.place}, resolved));
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
  if (job.train.nesterov && job.train.momentum <= 0) {
    return InvalidInput("{}: Nesterov's form needs train.momentum above 0, not {}",
                        resolved.Place("train.nesterov"), job.train.momentum)
        .WithFix("set train.momentum, for example to 0.9, or leave train.nesterov out");
  }
  return {};
}

Result<ResolvedJob> Settle(ResolvedJob resolved) {
  MOTLEY_RETURN_IF_ERROR(SettleModel(resolved));
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
  if (from.source == Source::kDefault) return key + " (default)";
  // "--set train.batch" names the key already.
  return from.source == Source::kFlag ? from.place : from.place + ": " + key;
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
    const bool device = section == kDeviceSection;
    if (device && !job.device.listed) continue;
    toml += device ? "[[device]]\n" : fmt::format("[{}]\n", section);
    for (const Key& key : Keys()) {
      const std::string value = key.section == section ? FormatValue(key, job) : "";
      if (!value.empty()) toml += fmt::format("{} = {}\n", key.name, value);
    }
    toml += "\n";
  }
  return toml;
}

}  // namespace motley::app
