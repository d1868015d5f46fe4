#include "apps/motley/prepare.h"

#include <charconv>
#include <utility>

#include "motley/base/cpu.h"
#include "motley/base/file.h"
#include "motley/data/open.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/onnx.h"
#include "motley/graph/safetensors.h"
#include "motley/graph/zoo.h"

namespace motley::app {
namespace {

// Motley's folder below the one that `variable` names, or below the user's own; empty for neither.
std::filesystem::path UserFolder(const Environment& environment, const char* variable,
                                 const char* below_home) {
  // The XDG specification says that relative paths are to be ignored.
  const auto xdg = environment.find(variable);
  if (xdg != environment.end() && xdg->second.starts_with('/')) {
    return std::filesystem::path(xdg->second) / "motley";
  }
  const auto home = environment.find("HOME");
  if (home == environment.end() || home->second.empty()) return {};
  return std::filesystem::path(home->second) / below_home / "motley";
}

using base::InvalidInput;
using base::Result;
using base::Status;

constexpr const char* kOnnxInRun = "model.onnx";

data::OpenOptions OpenOptionsOf(const ResolvedJob& resolved, const PrepareOptions& options) {
  return {.cache = options.cache,
          .resize_height = resolved.job.data.resize.height,
          .resize_width = resolved.job.data.resize.width,
          .fetch = options.fetch,
          .stand_in = !options.fetch,
          .train_place = resolved.Place("data.train"),
          .test_place = resolved.Place("data.test"),
          .on_progress = options.on_progress};
}

Result<data::DataPair> OpenData(const ResolvedJob& resolved, const data::OpenOptions& open) {
  const Job::Data& wanted = resolved.job.data;
  auto pair = data::Open(wanted.train, wanted.test, open);
  if (!pair.ok()) return pair;
  const data::Dataset& train = *pair->train;
  if (wanted.resize.given() &&
      (train.height() != wanted.resize.height || train.width() != wanted.resize.width)) {
    return InvalidInput("{}: only images: data can be resized; {} stays {}x{}",
                        resolved.Place("data.resize"), wanted.train, train.height(), train.width())
        .WithFix("leave data.resize out, or use data.pad and data.crop");
  }
  if (resolved.job.train.batch > train.size()) {
    return InvalidInput("{}: {} is more than the {} training samples of {}",
                        resolved.Place("train.batch"), resolved.job.train.batch, train.size(),
                        wanted.train)
        .WithFix(fmt::format("set train.batch to {} or less", train.size()));
  }
  return pair;
}

Result<std::vector<float>> PerChannel(const ResolvedJob& resolved, const std::string& key,
                                      const std::vector<double>& given,
                                      const std::vector<float>& measured) {
  if (given.empty()) return measured;
  if (given.size() == measured.size()) return std::vector<float>(given.begin(), given.end());
  return InvalidInput("{}: it has {} numbers, but the images of {} have {} channels",
                      resolved.Place(key), given.size(), resolved.job.data.train, measured.size())
      .WithFix("give one number per channel, or leave the key out to have it measured");
}

// For evaluation; training adds the random choices.
Result<data::Transform> MakeTransform(const ResolvedJob& resolved, const data::Dataset& train) {
  const Job::Data& wanted = resolved.job.data;
  auto measured = data::MeasureChannels(train);
  if (!measured.ok()) return std::move(measured).status().In(resolved.Place("data.train"));
  data::Transform transform;
  transform.pad = static_cast<int>(wanted.pad);
  transform.crop_height = wanted.crop.height;
  transform.crop_width = wanted.crop.width;
  MOTLEY_ASSIGN_OR_RETURN(transform.mean,
                          PerChannel(resolved, "data.mean", wanted.mean, measured->mean));
  MOTLEY_ASSIGN_OR_RETURN(transform.stddev,
                          PerChannel(resolved, "data.std", wanted.std, measured->stddev));
  MOTLEY_RETURN_IF_ERROR(transform.Check(train).In(resolved.Place("data.crop")));
  return transform;
}

Result<graph::Model> ModelFromZoo(const ResolvedJob& resolved, const graph::Shape& input,
                                  std::int64_t classes) {
  auto graph = graph::BuildZoo(resolved.job.model.zoo, input, classes);
  if (!graph.ok()) {
    return std::move(graph).status().In(
        fmt::format("{}, for {} images of {}", resolved.Place("model.zoo"), graph::ToString(input),
                    resolved.job.data.train));
  }
  return graph::InitialModel(std::move(graph).value(),
                             static_cast<std::uint64_t>(resolved.job.train.seed));
}

Result<graph::Model> ModelFromOnnx(const ResolvedJob& resolved, const PrepareOptions& options,
                                   const graph::Shape& input, std::int64_t classes,
                                   std::string& bytes) {
  const std::string& file = resolved.job.model.onnx;
  auto read = base::ReadFile(file);
  if (read.status().code() == base::Code::kNotFound && !options.onnx_copy.empty()) {
    read = base::ReadFile(options.onnx_copy);
  }
  if (!read.ok()) return std::move(read).status().In(resolved.Place("model.onnx"));
  bytes = std::move(read).value();
  auto model = graph::ParseOnnx(bytes, file);
  if (!model.ok()) return std::move(model).status().In(resolved.Place("model.onnx"));
  if (model->graph.input_shape() != input) {
    return InvalidInput("{}: {} takes {}, but {} gives {}", resolved.Place("model.onnx"), file,
                        graph::ToString(model->graph.input_shape()), resolved.job.data.train,
                        graph::ToString(input))
        .WithFix("make them fit with data.resize, data.pad and data.crop, or use other data");
  }
  if (model->graph.num_classes() != classes) {
    return InvalidInput("{}: {} tells {} classes apart, but {} has {}",
                        resolved.Place("model.onnx"), file, model->graph.num_classes(),
                        resolved.job.data.train, classes)
        .WithFix(fmt::format("export the net with {} outputs, or use other data", classes));
  }
  return model;
}

Result<graph::Model> MakeModel(const ResolvedJob& resolved, const PrepareOptions& options,
                               const graph::Shape& input, std::int64_t classes,
                               std::string& onnx_bytes) {
  auto model = resolved.job.model.onnx.empty()
                   ? ModelFromZoo(resolved, input, classes)
                   : ModelFromOnnx(resolved, options, input, classes, onnx_bytes);
  if (model.ok() && options.load_weights && !resolved.job.model.weights.empty()) {
    MOTLEY_RETURN_IF_ERROR(
        graph::LoadWeights(resolved.job.model.weights, *model).In(resolved.Place("model.weights")));
  }
  return model;
}

std::string Join(const std::vector<float>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ","));
}

JobFacts FactsOf(const Job& job, const Prepared& prepared) {
  const graph::Graph& graph = prepared.model.graph;
  const data::Transform& transform = prepared.train_transform;
  JobFacts facts = {
      {"model.input", graph::ToString(graph.input_shape())},
      {"model.classes", std::to_string(graph.num_classes())},
      {"data.train", job.data.train},
      {"data.train_sha256", prepared.data.train->ContentHash()},
      {"data.test_sha256", prepared.data.test->ContentHash()},
      {"data.pad", std::to_string(transform.pad)},
      {"data.crop", fmt::format("{}x{}", transform.crop_height, transform.crop_width)},
      {"data.flip", transform.flip ? "true" : "false"},
      {"data.mean", Join(transform.mean)},
      {"data.std", Join(transform.stddev)},
      {"train.batch", std::to_string(job.train.batch)},
      {"train.seed", std::to_string(job.train.seed)},
      {"train.bn_batch", std::to_string(job.train.bn_batch)},
      {"train.learning_rate", fmt::format("{}", job.train.learning_rate)},
      {"train.momentum", fmt::format("{}", job.train.momentum)},
      {"train.weight_decay", fmt::format("{}", job.train.weight_decay)},
      {"train.schedule", ScheduleText(job)},
      {"device.cpu", base::CpuModel()},
      {"device.threads",
       std::to_string(DevicesOf(job).front().threads > 0 ? DevicesOf(job).front().threads
                                                         : engine::native::UsableCores())},
  };
  if (job.model.onnx.empty()) {
    facts["model.zoo"] = job.model.zoo;
  } else {
    facts["model.onnx_sha256"] = base::Sha256(prepared.onnx_bytes);
  }
  return facts;
}

// What must not differ between a checkpoint and the job that goes on with it, and the key that a
// user would look at.
constexpr std::pair<const char*, const char*> kMustAgree[] = {
    {"model.zoo", "model.zoo"},
    {"model.onnx_sha256", "model.onnx"},
    {"data.train_sha256", "data.train"},
    {"data.test_sha256", "data.test"},
    {"data.pad", "data.pad"},
    {"data.crop", "data.crop"},
    {"data.flip", "data.flip"},
    {"data.mean", "data.mean"},
    {"data.std", "data.std"},
    {"model.input", "data.resize"},
    {"model.classes", "data.train"},
    {"train.batch", "train.batch"},
    {"train.seed", "train.seed"},
    {"train.bn_batch", "train.bn_batch"},
};

std::string FactOr(const JobFacts& facts, const std::string& name, const std::string& otherwise) {
  const auto found = facts.find(name);
  return found == facts.end() ? otherwise : found->second;
}

}  // namespace

Result<Prepared> Prepare(const ResolvedJob& resolved, const PrepareOptions& options) {
  const data::OpenOptions open = OpenOptionsOf(resolved, options);
  const bool stand_in =
      open.stand_in && data::IsMissing(resolved.job.data.train, resolved.job.data.test, open);
  MOTLEY_ASSIGN_OR_RETURN(data::DataPair data, OpenData(resolved, open));
  MOTLEY_ASSIGN_OR_RETURN(data::Transform test_transform, MakeTransform(resolved, *data.train));
  data::Transform train_transform = test_transform;
  train_transform.flip = resolved.job.data.flip;
  train_transform.training = true;
  const auto classes = static_cast<std::int64_t>(data.train->classes().size());
  std::string onnx_bytes;
  MOTLEY_ASSIGN_OR_RETURN(
      graph::Model model,
      MakeModel(resolved, options, train_transform.OutputShape(*data.train), classes, onnx_bytes));
  Prepared prepared{.data = std::move(data),
                    .train_transform = std::move(train_transform),
                    .test_transform = std::move(test_transform),
                    .model = std::move(model),
                    .onnx_bytes = std::move(onnx_bytes),
                    .facts = {},
                    .stand_in = stand_in};
  prepared.facts = FactsOf(resolved.job, prepared);
  return prepared;
}

Status CheckSameJob(const JobFacts& checkpoint, const ResolvedJob& resolved, const JobFacts& now) {
  for (const auto& [fact, key] : kMustAgree) {
    const std::string before = FactOr(checkpoint, fact, "(not set)");
    const std::string after = FactOr(now, fact, "(not set)");
    if (before == after) continue;
    return InvalidInput("{}: the checkpoint was made with {} = {}, and this job has {}",
                        resolved.Place(key), fact, before, after)
        .WithFix(fmt::format("resume with the {} that the run began with, or begin a new run with "
                             "another --out and without --resume",
                             key));
  }
  return {};
}

Result<graph::Graph> RebuildGraph(const JobFacts& facts, const std::filesystem::path& run) {
  const std::string zoo = FactOr(facts, "model.zoo", "");
  if (zoo.empty()) {
    MOTLEY_ASSIGN_OR_RETURN(graph::Model model, graph::ReadOnnx(run / kOnnxInRun));
    return std::move(model.graph);
  }
  MOTLEY_ASSIGN_OR_RETURN(const graph::Shape input, ParseShape(FactOr(facts, "model.input", "")));
  MOTLEY_ASSIGN_OR_RETURN(const graph::Shape classes,
                          ParseShape(FactOr(facts, "model.classes", "")));
  return graph::BuildZoo(zoo, input, classes.front());
}

Result<std::filesystem::path> DataCache(const Environment& environment) {
  const auto folder = UserFolder(environment, "XDG_DATA_HOME", ".local/share");
  if (!folder.empty()) return folder;
  return InvalidInput("neither XDG_DATA_HOME nor HOME is set: no place to keep datasets")
      .WithFix("set XDG_DATA_HOME to a folder that you can write to");
}

std::filesystem::path KernelCacheFile(const Environment& environment) {
  const auto folder = UserFolder(environment, "XDG_CACHE_HOME", ".cache");
  return folder.empty() ? folder : folder / "kernels";
}

std::filesystem::path ProbeCacheFile(const Environment& environment) {
  const auto folder = UserFolder(environment, "XDG_CACHE_HOME", ".cache");
  return folder.empty() ? folder : folder / "probes.json";
}

std::string ModelName(const Job& job) {
  if (job.model.onnx.empty()) return job.model.zoo;
  return std::filesystem::path(job.model.onnx).stem().string();
}

Result<graph::Shape> ParseShape(const std::string& text) {
  graph::Shape shape;
  for (const char *at = text.data(), *end = at + text.size(); at <= end; ++at) {
    std::int64_t size = 0;
    const auto [after, error] = std::from_chars(at, end, size);
    const bool ends_well = after == end || *after == 'x';
    if (error != std::errc() || size < 1 || size > 1 << 20 || !ends_well) {
      return InvalidInput("'{}' is not a shape", text).WithFix("write it like 3x224x224");
    }
    shape.push_back(size);
    at = after;
  }
  return shape;
}

}  // namespace motley::app
