#include "apps/motley/dry_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/motley/console.h"
#include "apps/motley/job_keys.h"

namespace motley::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNotHere = "mnist is not here yet; training fetches it first";

// A value as a job file has it is also JSON; what is not set is null.
Json ValueJson(const std::string& value) {
  if (value.empty()) return nullptr;
  Json parsed = Json::parse(value, nullptr, false);
  return parsed.is_discarded() ? Json(value) : parsed;
}

// Every key of the job, with the row of its section; a device that is not listed has the defaults.
std::vector<std::pair<const Key*, std::size_t>> ShownKeys(const Job& job) {
  std::vector<std::pair<const Key*, std::size_t>> shown;
  for (const std::string_view section : Sections()) {
    const std::size_t rows =
        section == "device" ? std::max<std::size_t>(1, Rows(job, section)) : Rows(job, section);
    for (std::size_t row = 0; row < rows; ++row) {
      for (const Key& key : Keys()) {
        if (key.section == section) shown.emplace_back(&key, row);
      }
    }
  }
  return shown;
}

std::int64_t StepsPerEpoch(const Job& job, const Prepared& prepared) {
  return (prepared.data.train->size() + job.train.batch - 1) / job.train.batch;
}

std::string Goal(const Job& job) {
  std::string goal;
  const auto add = [&](const std::string& words) { goal += (goal.empty() ? "" : ", or ") + words; };
  if (job.train.target_accuracy) {
    add(fmt::format("at {:.2f} % test accuracy", 100.0 * *job.train.target_accuracy));
  }
  if (const auto epochs = EpochLimit(job)) add(fmt::format("after {} epochs", *epochs));
  if (job.train.max_seconds) add("after " + FormatSeconds(*job.train.max_seconds));
  return goal;
}

void PrintPrepared(const Job& job, const Prepared& prepared, std::FILE* out) {
  const graph::Graph& graph = prepared.model.graph;
  const data::Dataset& train = *prepared.data.train;
  fmt::print(out, "model  {}: {} parameters, {}FLOP per sample forward, {}FLOP backward\n",
             ModelName(job), Thousands(graph.parameter_count()),
             Scaled(static_cast<double>(graph.ForwardFlops())),
             Scaled(static_cast<double>(graph.BackwardFlops())));
  fmt::print(out, "data   {}: {} training and {} test samples, {} after transforms, {} classes\n",
             job.data.train, Thousands(train.size()), Thousands(prepared.data.test->size()),
             graph::ToString(graph.input_shape()), train.classes().size());
  const std::int64_t steps = StepsPerEpoch(job, prepared);
  fmt::print(out, "steps  {} per epoch", Thousands(steps));
  if (const auto epochs = EpochLimit(job)) {
    fmt::print(out, ", at most {} in all", Thousands(steps * *epochs));
  }
  fmt::print(out, "\n");
  if (prepared.stand_in) fmt::print(out, "data   not opened: {}\n", kNotHere);
}

}  // namespace

void PrintDryRun(const DryRun& dry_run, std::FILE* out) {
  const Job& job = dry_run.resolved.job;
  std::size_t widest = 0;
  for (const Key& key : Keys()) widest = std::max(widest, FormatValue(key, job).size());
  for (const auto& [key, row] : ShownKeys(job)) {
    const Origin origin = dry_run.resolved.origin(key->full(row));
    const std::string value = FormatValue(*key, job, row);
    fmt::print(out, "{:<27}  {:<{}}  {}\n", key->full(row), value.empty() ? "-" : value,
               std::min<std::size_t>(widest, 40),
               origin.place.empty() ? SourceName(origin.source) : origin.place);
  }
  fmt::print(out, "\n");
  PrintPrepared(job, dry_run.prepared, out);
  if (!dry_run.does_not_fit.empty()) fmt::print(out, "note   {}\n", dry_run.does_not_fit);
  fmt::print(out, "stops  {}\n\nNothing was trained or written; without --dry-run it starts.\n",
             Goal(job));
}

Json DryRunJson(const DryRun& dry_run) {
  const Job& job = dry_run.resolved.job;
  Json json;
  for (const auto& [key, row] : ShownKeys(job)) {
    const Origin origin = dry_run.resolved.origin(key->full(row));
    json["job"][key->full(row)] = {{"value", ValueJson(FormatValue(*key, job, row))},
                                   {"source", SourceName(origin.source)},
                                   {"place", origin.place}};
  }
  const Prepared& prepared = dry_run.prepared;
  const graph::Graph& graph = prepared.model.graph;
  json["model"] = {{"name", ModelName(job)},
                   {"parameters", graph.parameter_count()},
                   {"flops_forward", graph.ForwardFlops()},
                   {"flops_backward", graph.BackwardFlops()},
                   {"input", graph::ToString(graph.input_shape())},
                   {"classes", graph.num_classes()}};
  json["data"] = {{"opened", !prepared.stand_in},
                  {"train_samples", prepared.data.train->size()},
                  {"test_samples", prepared.data.test->size()}};
  if (prepared.stand_in) json["data"]["reason"] = kNotHere;
  json["steps_per_epoch"] = StepsPerEpoch(job, prepared);
  json["does_not_fit"] = dry_run.does_not_fit.empty() ? Json(nullptr) : Json(dry_run.does_not_fit);
  return json;
}

void PrintKeys(std::FILE* out) {
  fmt::print(out,
             "Keys of a job file. Each can also be given as --set section.key=value or as the\n"
             "environment variable MOTLEY_SECTION_KEY; a flag beats the environment, and that\n"
             "beats the file.\n");
  std::string_view section;
  for (const Key& key : Keys()) {
    if (key.section != section) {
      section = key.section;
      fmt::print(out, "\n{}\n",
                 IsList(section) ? fmt::format("[[{}]]", section) : fmt::format("[{}]", section));
    }
    const std::string value = FormatValue(key, Job{});
    fmt::print(out, "  {:<16} {}\n  {:<16} {}; default: {}\n", key.name, key.help, "",
               key.TypeText(), value.empty() ? "not set" : value);
  }
}

Json KeysJson() {
  Json json = Json::array();
  for (const Key& key : Keys()) {
    json.push_back({{"key", key.full()},
                    {"variable", key.variable()},
                    {"type", key.TypeText()},
                    {"default", ValueJson(FormatValue(key, Job{}))},
                    {"help", key.help}});
  }
  return json;
}

}  // namespace motley::app
