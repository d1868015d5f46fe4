// A net whose head is computed elsewhere gives the gradients of the whole one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "differential.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/zoo.h"
#include "small_graphs.h"

namespace motley::engine {
namespace {

using graph::GraphBuilder;
using graph::NodeId;

struct Sums {
  std::vector<float> gradient, buffer_sums;
  StepResult result;
};

// With given kernels: all round alike, and measuring takes long with old instructions.
std::unique_ptr<Device> MakeDevice(graph::Graph graph, int lanes) {
  DeviceOptions options{.threads = lanes, .cores = {}};
  for (const graph::Node& node : graph.nodes()) {
    if (node.op == graph::Op::kConv) options.kernel_choices[node.name] = "lowered";
  }
  return native::MakeNativeDevice(std::make_shared<const graph::Graph>(std::move(graph)), options)
      .value();
}

Sums Whole(const graph::Graph& graph, const graph::Model& model, const data::Batch& batch,
           int lanes) {
  Sums sums;
  sums.gradient.resize(model.weights.size());
  sums.buffer_sums.resize(model.buffers.size());
  StepRequest request;
  request.weights = model.weights;
  request.batch = &batch;
  request.seed = 7;
  request.gradient = sums.gradient;
  request.buffer_sums = sums.buffer_sums;
  sums.result = MakeDevice(graph, lanes)->Step(request).value();
  return sums;
}

// The body on `lanes`, and the head once all samples are there.
class Split {
 public:
  Split(const graph::Graph& graph, const graph::Model& model, const data::Batch& batch, int lanes)
      : halves_(graph::Split(graph).value()),
        head_(MakeDevice(halves_.head, 2)),
        model_(model),
        batch_(batch) {
    features_ = graph::Count(halves_.head.input_shape());
    crossed_ = {.images = {}, .labels = batch.labels, .ids = batch.ids, .epoch = batch.epoch};
    crossed_.images.resize(static_cast<std::size_t>(batch.size() * features_));
    input_gradient_.resize(crossed_.images.size());
    sums_.gradient.resize(model.weights.size());
    sums_.buffer_sums.resize(model.buffers.size());
    const auto parameters = static_cast<std::size_t>(halves_.body.parameter_count());
    StepRequest request;
    request.weights = std::span(model.weights).first(parameters);
    request.batch = &batch;
    request.seed = 7;
    request.gradient = std::span(sums_.gradient).first(parameters);
    request.buffer_sums = sums_.buffer_sums;
    request.on_boundary = [&](const Crossing& crossing) { return Cross(crossing); };
    request.on_bucket = [&](std::int64_t, std::int64_t count) { announced_ += count; };
    const auto body = MakeDevice(halves_.body, lanes);
    EXPECT_EQ(body->Step(request).value().samples_done, batch.size());
    EXPECT_EQ(announced_, halves_.body.parameter_count());
  }

  const Sums& sums() const { return sums_; }

 private:
  bool Cross(const Crossing& crossing) {
    std::unique_lock lock(mutex_);
    const auto at = static_cast<std::ptrdiff_t>(crossing.begin * features_);
    std::copy(crossing.activations.begin(), crossing.activations.end(),
              crossed_.images.begin() + at);
    arrived_ += crossing.end - crossing.begin;
    if (arrived_ == batch_.size()) {
      StepHead();
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return answered_; });
    std::copy_n(input_gradient_.begin() + at, crossing.gradient.size(), crossing.gradient.begin());
    return true;
  }

  void StepHead() {
    const auto parameters = static_cast<std::size_t>(halves_.body.parameter_count());
    StepRequest request;
    request.weights = std::span(model_.weights).subspan(parameters);
    request.batch = &crossed_;
    request.seed = 7;
    request.gradient = std::span(sums_.gradient).subspan(parameters);
    request.input_gradient = input_gradient_;
    sums_.result = head_->Step(request).value();
    answered_ = true;
  }

  const graph::Halves halves_;
  const std::unique_ptr<Device> head_;
  const graph::Model& model_;
  const data::Batch& batch_;
  std::int64_t features_ = 0, announced_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  data::Batch crossed_;
  std::vector<float> input_gradient_;
  std::int64_t arrived_ = 0;
  bool answered_ = false;
  Sums sums_;
};

struct Net {
  std::string name;
  graph::Graph (*make)();
};

void PrintTo(const Net& net, std::ostream* out) { *out << net.name; }

graph::Graph Zoo(const std::string& name, const graph::Shape& input) {
  return graph::BuildZoo(name, input, 10).value();
}

// Dropout on both sides of the boundary: keyed by the place in the whole net.
graph::Graph NetOfTwoDropouts() {
  GraphBuilder b("dropout", {3, 7, 7});
  NodeId x = b.Relu("relu1", b.Conv("conv1", 0, {.out_channels = 6, .kernel_h = 3, .kernel_w = 3}));
  x = b.Dropout("drop1", b.Flatten("flatten", x), {.probability = 0.3F});
  x = b.Relu("relu2", b.FullyConnected("fc1", x, {.out_features = 20}));
  x = b.Dropout("drop2", x, {.probability = 0.4F});
  return std::move(b).Build(b.FullyConnected("fc2", x, {.out_features = 5})).value();
}

// Its lanes meet in the body.
graph::Graph NetOfLanesThatMeet() {
  GraphBuilder b("batch_norm", {3, 7, 7});
  const NodeId x = b.BatchNorm(
      "bn", b.Conv("conv", 0, {.out_channels = 8, .kernel_h = 3, .kernel_w = 3, .bias = false}));
  const NodeId y = b.GlobalAvgPool("pool", b.Relu("relu", x));
  return std::move(b).Build(b.FullyConnected("fc", b.Flatten("f", y), {.out_features = 5})).value();
}

class HalvesTest : public ::testing::TestWithParam<Net> {};

TEST_P(HalvesTest, GiveTheGradientsOfTheWholeNet) {
  const graph::Graph graph = GetParam().make();
  const graph::Model model = testing::RandomModel(graph, 3);
  const data::Batch batch = testing::RandomBatch(graph, 9, 5);
  for (const int lanes : {1, 2, 3}) {
    const Sums whole = Whole(graph, model, batch, lanes);
    const Split split(graph, model, batch, lanes);
    EXPECT_NEAR(split.sums().result.loss_sum, whole.result.loss_sum, 1e-5 * whole.result.loss_sum);
    EXPECT_EQ(split.sums().result.correct, whole.result.correct);
    EXPECT_LT(testing::RelativeDistance(split.sums().gradient, whole.gradient), 1e-5);
    if (graph.has_batch_norm()) {
      EXPECT_LT(testing::RelativeDistance(split.sums().buffer_sums, whole.buffer_sums), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Nets, HalvesTest,
                         ::testing::Values(Net{"lenet",
                                               [] {
                                                 return Zoo("lenet", {1, 28, 28});
                                               }},
                                           Net{"batch_norm", NetOfLanesThatMeet},
                                           Net{"dropout", NetOfTwoDropouts}),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(HalvesTest, AnOrderToGiveUpReachesTheCaller) {
  const graph::Halves halves = graph::Split(Zoo("lenet", {1, 28, 28})).value();
  const graph::Model model = testing::RandomModel(halves.body, 3);
  const data::Batch batch = testing::RandomBatch(halves.body, 4, 5);
  std::vector<float> gradient(model.weights.size());
  std::atomic<bool> cancel = false;
  StepRequest request;
  request.weights = model.weights;
  request.batch = &batch;
  request.cancel = &cancel;
  request.gradient = gradient;
  request.on_boundary = [&](const Crossing&) {
    cancel = true;
    return false;
  };
  EXPECT_EQ(MakeDevice(halves.body, 2)->Step(request).status().code(), base::Code::kCancelled);
}

TEST(HalvesTest, ANetWithoutAHeadIsRefused) {
  const auto halves = graph::Split(Zoo("squeezenet", {3, 64, 64}));
  ASSERT_FALSE(halves.ok());
  EXPECT_NE(halves.status().message().find("no fully connected layer"), std::string::npos);
}

}  // namespace
}  // namespace motley::engine
