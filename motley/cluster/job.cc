#include "motley/cluster/job.h"

#include <utility>

#include "motley/graph/onnx.h"
#include "motley/graph/zoo.h"

namespace motley::cluster {
namespace {

// Far above anything that trains, and small enough that products of them do not overflow.
constexpr std::int64_t kMaxSide = 1 << 14, kMaxChannels = 1 << 12,
                       kMaxSamples = std::int64_t{1} << 40, kMaxBatch = 1 << 20;

void Fill(const data::Dataset& from, proto::Set& set) {
  set.set_size(from.size());
  set.set_channels(from.channels());
  set.set_height(from.height());
  set.set_width(from.width());
  for (const std::string& name : from.classes()) set.add_classes(name);
  set.set_sha256(from.ContentHash());
}

}  // namespace

proto::Job MakeJob(const JobSource& source, const graph::Graph& graph, const data::DataPair& data) {
  proto::Job job;
  job.set_zoo(source.zoo);
  job.set_onnx(source.onnx);
  for (const std::int64_t side : graph.input_shape()) job.add_input(side);
  job.set_classes(graph.num_classes());
  job.set_parameters(graph.parameter_count());
  job.set_buffers(graph.buffer_count());
  job.set_seed(source.seed);
  job.set_bn_batch(source.bn_batch);
  job.set_batch(source.batch);
  job.set_merged_head(source.merged_head);
  job.set_shards(source.shards);
  job.set_data(source.data);
  job.set_test_data(source.test_data);
  job.set_resize_height(source.resize_height);
  job.set_resize_width(source.resize_width);
  Fill(*data.train, *job.mutable_train());
  Fill(*data.test, *job.mutable_test());
  const data::Transform& from = source.train_transform;
  proto::Transform& transform = *job.mutable_transform();
  transform.set_pad(from.pad);
  transform.set_crop_height(from.crop_height);
  transform.set_crop_width(from.crop_width);
  transform.set_flip(from.flip);
  transform.mutable_mean()->Add(from.mean.begin(), from.mean.end());
  transform.mutable_stddev()->Add(from.stddev.begin(), from.stddev.end());
  return job;
}

void Fill(const optim::SgdOptions& sgd, proto::Sgd& message) {
  message.set_learning_rate(sgd.learning_rate);
  message.set_momentum(sgd.momentum);
  message.set_weight_decay(sgd.weight_decay);
  message.set_nesterov(sgd.nesterov);
}

optim::SgdOptions SgdOf(const proto::Sgd& message) {
  return {.learning_rate = message.learning_rate(),
          .momentum = message.momentum(),
          .weight_decay = message.weight_decay(),
          .nesterov = message.nesterov()};
}

base::Status CheckTravels(const proto::Job& job) {
  constexpr std::size_t kRest = 1 << 20;  // of the reply around it
  const std::size_t bytes = job.ByteSizeLong();
  if (bytes + kRest <= static_cast<std::size_t>(kMaxMessageToWorker)) return {};
  return base::InvalidInput(
             "the job has {:.0f} MB with its network, and workers take {:.0f} MB at most",
             static_cast<double>(bytes) / 1e6,
             (kMaxMessageToWorker - static_cast<double>(kRest)) / 1e6)
      .WithFix(
          "name a network of the zoo, whose weights do not travel with the job, or use "
          "`motley train` on this machine");
}

base::Result<graph::Graph> BuildGraph(const proto::Job& job) {
  if (job.batch() < 1 || job.batch() > kMaxBatch || job.bn_batch() < 0 ||
      job.bn_batch() > job.batch()) {
    return base::InvalidInput("the coordinator's job: a batch of {}, batch norm over {}",
                              job.batch(), job.bn_batch());
  }
  auto built = [&]() -> base::Result<graph::Graph> {
    if (job.onnx().empty()) {
      return graph::BuildZoo(job.zoo(), graph::Shape(job.input().begin(), job.input().end()),
                             job.classes());
    }
    MOTLEY_ASSIGN_OR_RETURN(graph::Model model, graph::ParseOnnx(job.onnx(), "the job's network"));
    return std::move(model.graph);
  }();
  if (!built.ok()) return std::move(built).status().In("the coordinator's job");
  if (job.shards() < 1 || job.shards() > kMaxShards || job.shards() > built->parameter_count()) {
    return base::InvalidInput("the coordinator's job: {} shards of {} parameters", job.shards(),
                              built->parameter_count());
  }
  if (built->parameter_count() != job.parameters() || built->buffer_count() != job.buffers()) {
    return base::InvalidInput(
               "the coordinator's network has {} parameters, the same network here has {}",
               job.parameters(), built->parameter_count())
        .WithFix("use the same version of motley on all machines");
  }
  return built;
}

base::Result<data::Transform> ToTransform(const proto::Job& job, bool training) {
  const proto::Transform& from = job.transform();
  const auto fits = [](std::int32_t side) { return side >= 0 && side <= kMaxSide; };
  if (!fits(from.pad()) || !fits(from.crop_height()) || !fits(from.crop_width())) {
    return base::InvalidInput("the coordinator's job: a crop of {}x{} after padding by {}",
                              from.crop_height(), from.crop_width(), from.pad());
  }
  data::Transform transform;
  transform.pad = from.pad();
  transform.crop_height = from.crop_height();
  transform.crop_width = from.crop_width();
  transform.flip = training && from.flip();
  transform.mean.assign(from.mean().begin(), from.mean().end());
  transform.stddev.assign(from.stddev().begin(), from.stddev().end());
  transform.training = training;
  return transform;
}

base::Status CheckSet(const proto::Set& set) {
  const bool plausible = set.size() > 0 && set.size() <= kMaxSamples && set.channels() > 0 &&
                         set.channels() <= kMaxChannels && set.height() > 0 &&
                         set.height() <= kMaxSide && set.width() > 0 && set.width() <= kMaxSide &&
                         set.classes_size() > 0;
  if (plausible) return {};
  return base::InvalidInput("the coordinator's job: {} samples of {}x{}x{} in {} classes",
                            set.size(), set.channels(), set.height(), set.width(),
                            set.classes_size());
}

}  // namespace motley::cluster
