// LibTorch's device: the contract of every device, and its numbers against the plain reference. The
// little nets go through in a few tests, because loading LibTorch takes longer than computing them.
#include "motley/engine/torch/torch_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "device_contract.h"
#include "differential.h"
#include "motley/base/clock.h"
#include "motley/engine/native/native_device.h"
#include "motley/engine/reference/reference_device.h"
#include "motley/engine/torch/network.h"
#include "motley/graph/zoo.h"
#include "motley/optim/sgd.h"
#include "small_graphs.h"

namespace motley::engine::testing {
namespace {

std::unique_ptr<Device> Torch(SharedGraph graph, const DeviceOptions& options) {
  return torch::MakeTorchDevice(std::move(graph), options, "torch:cpu").value();
}

Kind TorchCpu() {
  return {"TorchCpu", [](SharedGraph graph, std::int64_t bn_batch) {
            return Torch(std::move(graph), {.threads = 1, .bn_batch = bn_batch});
          }};
}

SharedGraph OfTheZoo(const char* name, const graph::Shape& input) {
  return std::make_shared<const graph::Graph>(graph::BuildZoo(name, input, 10).value());
}

struct Setting {
  std::int64_t samples;
  int threads = 1;
  std::int64_t bn_batch = 0;
};

void Check(const SharedGraph& graph, const Setting& setting) {
  SCOPED_TRACE(::testing::Message()
               << graph->name() << ", " << setting.samples << " samples, " << setting.threads
               << " threads, bn_batch " << setting.bn_batch);
  const DeviceOptions options{.threads = setting.threads, .bn_batch = setting.bn_batch};
  const auto torch = Torch(graph, options);
  const auto reference = reference::MakeReferenceDevice(graph, options);
  const auto seed = static_cast<std::uint64_t>(setting.samples);
  const graph::Model model = RandomModel(*graph, seed);
  const data::Batch batch = RandomBatch(*graph, setting.samples, seed);
  ExpectClose(*graph, Observe(*reference, model, batch), Observe(*torch, model, batch));
}

// Mostly with one thread: where another program has the second core, LibTorch's threads wait for
// each other far longer than they compute.
TEST(TorchDifferentialTest, EveryOperatorAgreesWithTheReference) {
  constexpr Setting kSettings[] = {{1}, {3}, {8}};
  for (const SmallGraph& small : SmallGraphs()) {
    for (const Setting& setting : kSettings) Check(Build(small), setting);
  }
}

TEST(TorchDifferentialTest, ABatchOfSeveralChunksAgreesWithTheReference) {
  for (const char* name : {"HeadWithDropout", "FireModule", "InceptionModule", "ShuffleUnit"}) {
    Check(GraphNamed(name), {150, 2});
  }
}

TEST(TorchDifferentialTest, VirtualBatchesAgreeWithTheReference) {
  // Groups larger than the batch, and a last group that is smaller than the others.
  constexpr Setting kSettings[] = {{5, 1, 2}, {8, 1, 4}, {3, 1, 8}};
  for (const SmallGraph& small : SmallGraphs()) {
    const SharedGraph graph = Build(small);
    if (!graph->has_batch_norm()) continue;
    for (const Setting& setting : kSettings) Check(graph, setting);
  }
  // Chunks of several groups, and groups larger than a chunk would be.
  for (const Setting& setting : {Setting{130, 1, 24}, Setting{150, 1, 70}}) {
    Check(GraphNamed("ShuffleUnit"), setting);
  }
}

TEST(TorchDifferentialTest, LenetAgreesWithTheReference) {
  Check(OfTheZoo("lenet", {1, 28, 28}), {6});
}

graph::NodeId Block(graph::GraphBuilder& b, const std::string& name, graph::NodeId x, int channels,
                    int stride) {
  const auto conv = [&](const std::string& part, graph::NodeId input, int kernel, int step) {
    const graph::ConvAttrs attrs{.out_channels = channels,
                                 .kernel_h = kernel,
                                 .kernel_w = kernel,
                                 .stride_h = step,
                                 .stride_w = step,
                                 .pad = graph::Padding::Same(kernel / 2),
                                 .bias = false};
    return b.BatchNorm(name + part + ".bn", b.Conv(name + part, input, attrs));
  };
  const graph::NodeId first = b.Relu(name + ".relu1", conv(".conv1", x, 3, stride));
  const graph::NodeId second = conv(".conv2", first, 3, 1);
  const graph::NodeId shortcut = stride == 1 ? x : conv(".shortcut", x, 1, stride);
  return b.Relu(name + ".relu2", b.Sum(name + ".add", second, shortcut));
}

// Four blocks like a ResNet's; the real ones are too deep to compare closely with few samples.
SharedGraph LittleResnet() {
  const auto body = [](graph::GraphBuilder& b, graph::NodeId x) {
    x = Block(b, "block1", x, 8, 1);
    x = Block(b, "block2", x, 16, 2);
    x = Block(b, "block3", x, 16, 1);
    return b.GlobalAvgPool("pool", Block(b, "block4", x, 24, 2));
  };
  return Build({"LittleResnet", {8, 12, 12}, body});
}

TEST(TorchDifferentialTest, AResnetAgreesWithTheReference) {
  Check(LittleResnet(), {12});
  Check(LittleResnet(), {12, 1, 4});
}

// A pooling layer may pad more on one side, or more than half of its window, which LibTorch does
// not pad itself; together with ceil_mode, the windows end beyond the padding.
TEST(TorchDifferentialTest, PoolsOfEveryPaddingAgreeWithTheReference) {
  const graph::Padding pads[] = {{0, 1, 2, 0}, {2, 2, 2, 2}, {1, 0, 0, 2}, {0, 2, 1, 1}};
  for (const graph::Padding& pad : pads) {
    for (const int stride : {1, 2, 3}) {
      for (const bool ceil_mode : {false, true}) {
        for (const bool count_include_pad : {false, true}) {
          const graph::PoolAttrs attrs{.kernel_h = 3,
                                       .kernel_w = 3,
                                       .stride_h = stride,
                                       .stride_w = stride,
                                       .pad = pad,
                                       .ceil_mode = ceil_mode,
                                       .count_include_pad = count_include_pad};
          const auto body = [&](graph::GraphBuilder& b, graph::NodeId x) {
            return b.Concat("both", {b.MaxPool("max", x, attrs), b.AvgPool("avg", x, attrs)});
          };
          Check(Build({"Pools", {3, 6, 7}, body}), {2});
        }
      }
    }
  }
}

TEST(TorchDifferentialTest, BatchNormOfOneElementHasNoVariance) {
  const auto body = [](graph::GraphBuilder& b, graph::NodeId x) {
    return b.BatchNorm("bn", b.GlobalAvgPool("pool", x));
  };
  const SharedGraph graph = Build({"OneElement", {5, 3, 3}, body});
  Check(graph, {1});
  Check(graph, {3, 1, 1});
}

TEST(TorchDeviceTest, TheFirstOfEqualLogitsIsTheAnswer) {
  Bench bench(TorchCpu().make(GraphNamed(kWithoutBatchNorm), 0), 90);
  const std::vector<float> zeros(bench.model().weights.size(), 0.0F);
  StepRequest request = bench.Request();
  request.weights = zeros;
  const auto result = bench.device().Step(request);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  const auto& labels = bench.batch().labels;
  EXPECT_EQ(result->correct, std::count(labels.begin(), labels.end(), 0));
  EXPECT_NEAR(result->loss_sum, 90 * std::log(3.0), 1e-9);
}

// The weights after 20 steps of SGD, each with fresh samples.
std::vector<float> Train(Device& device, std::int64_t samples) {
  // Small: now and then rounding puts a ReLU's input on the other side of 0, on any two devices,
  // and a larger rate turns that into more than 1e-4.
  constexpr float kRate = 0.001F;
  graph::Model model = RandomModel(device.graph(), 1);
  std::vector<float> velocity(model.weights.size()), gradient(model.weights.size());
  std::vector<float> buffer_sums(model.buffers.size());
  for (std::uint64_t step = 0; step < 20; ++step) {
    const auto batch = RandomBatch(device.graph(), samples, step);
    const auto result = device.Step({.weights = model.weights,
                                     .batch = &batch,
                                     .seed = 4,
                                     .gradient = gradient,
                                     .buffer_sums = buffer_sums});
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_TRUE(
        optim::SgdUpdate({.learning_rate = kRate}, gradient, samples, model.weights, velocity));
  }
  return model.weights;
}

TEST(TorchDeviceTest, TakesTheSame20StepsAsTheNativeDevice) {
  struct Case {
    SharedGraph graph;
    std::int64_t bn_batch;
  };
  const Case cases[] = {{OfTheZoo("lenet", {1, 28, 28}), 0},
                        {GraphNamed("HeadWithDropout"), 0},
                        {LittleResnet(), 0},
                        {LittleResnet(), 8},
                        {GraphNamed("InvertedResidualBlock"), 4}};
  for (const Case& c : cases) {
    const DeviceOptions options{.threads = 1, .bn_batch = c.bn_batch};
    const auto native = native::MakeNativeDevice(c.graph, options).value();
    const auto torch = Torch(c.graph, options);
    EXPECT_LE(testing::RelativeDistance(Train(*torch, 24), Train(*native, 24)), 1e-4)
        << c.graph->name() << ", bn_batch " << c.bn_batch;
  }
}

TEST(TorchDeviceTest, TheSameStepTwiceIsTheSameToTheBit) {
  for (const char* name : {kWithBatchNorm, kWithoutBatchNorm}) {
    Bench bench(Torch(GraphNamed(name), {.threads = 2}), 150);
    ASSERT_TRUE(bench.device().Step(bench.Request()).ok());
    const std::vector<float> first = bench.gradient();
    ASSERT_TRUE(bench.device().Step(bench.Request()).ok());
    EXPECT_EQ(bench.gradient(), first);
  }
}

TEST(TorchDeviceTest, ABackwardPassCanBeStopped) {
  const SharedGraph graph = GraphNamed(kWithBatchNorm);
  const graph::Model model = RandomModel(*graph, 1);
  const data::Batch batch = RandomBatch(*graph, 5, 1);
  torch::PassOptions options{.training = true, .stop_backward = [] { return true; }};
  for (const graph::Tensor& tensor : graph->parameters()) {
    options.parameters.push_back(at::rand(tensor.shape).requires_grad_());
  }
  for (const graph::Tensor& tensor : graph->buffers()) {
    options.buffers.push_back(at::zeros(tensor.shape));
  }
  const at::Tensor sum = torch::Logits(*graph, options, batch, {0, 5}).sum();
  EXPECT_THROW(sum.backward(), torch::Stopped);
}

TEST(TorchDeviceTest, AFailureIsAnErrorAndTheNextStepWorks) {
  Bench bench(TorchCpu().make(GraphNamed(kWithoutBatchNorm), 0), 150);
  StepRequest request = bench.Request();
  request.on_bucket = [](std::int64_t, std::int64_t) { throw std::runtime_error("no room"); };
  const auto result = bench.device().Step(request);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("no room"), std::string::npos);
  request.on_bucket = {};
  const auto again = bench.device().Step(request);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->samples_done, 150);
}

// More than any machine can address: 2^48 bytes for one value.
TEST(TorchDeviceTest, TooLittleMemoryIsAnErrorWithAFix) {
  constexpr int kSide = 1 << 20;
  constexpr std::int64_t kSamples = 64;
  graph::GraphBuilder builder("Huge", {1, 1, 1});
  graph::NodeId x = builder.Pad("pad", builder.input(), {.pad = {0, 0, kSide - 1, kSide - 1}});
  x = builder.GlobalAvgPool("pool", builder.Relu("relu", x));
  x = builder.FullyConnected("fc", builder.Flatten("flatten", x), {.out_features = 3});
  auto graph = std::move(builder).Build(x);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  Bench bench(TorchCpu().make(std::make_shared<const graph::Graph>(std::move(graph).value()), 0),
              kSamples);
  const auto result = bench.device().Step(bench.Request());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), base::Code::kUnavailable);
  EXPECT_EQ(result.status().fix(), "use a smaller batch");
  EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
}

// Of a batch norm over everything, a deadline leaves all or nothing.
TEST(TorchDeviceTest, ADeadlineWithinABatchNormOverTheBatchLeavesAllOrNothing) {
  const base::RealClock clock;
  Bench bench(TorchCpu().make(GraphNamed(kWithBatchNorm), 0), 256);
  StepRequest request = bench.Request();
  ASSERT_TRUE(bench.device().Step(request).ok());
  const double start = clock.Now();
  ASSERT_TRUE(bench.device().Step(request).ok());
  const double whole = clock.Now() - start;
  const std::vector<float> expected = bench.gradient();
  for (const double part : {0.02, 0.1, 0.3, 0.9}) {
    request.deadline = clock.Now() + part * whole;
    const auto result = bench.device().Step(request);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    if (result->samples_done == 0) {
      EXPECT_EQ(bench.gradient(), std::vector<float>(expected.size(), 0.0F));
      EXPECT_EQ(bench.buffer_sums(), std::vector<float>(bench.buffer_sums().size(), 0.0F));
    } else {
      EXPECT_EQ(result->samples_done, 256);
      EXPECT_EQ(bench.gradient(), expected);
    }
  }
}

TEST(TorchDeviceTest, AGpuThatIsNotThereIsRefusedWithAFix) {
  const auto device = torch::MakeTorchDevice(GraphNamed(kWithoutBatchNorm), {}, "torch:cuda:127");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), base::Code::kUnavailable);
  EXPECT_NE(device.status().message().find("torch:cuda:127"), std::string::npos);
  EXPECT_FALSE(device.status().fix().empty());
}

TEST(TorchDeviceTest, OptionsThatMakeNoSenseAreRefused) {
  const SharedGraph graph = GraphNamed(kWithoutBatchNorm);
  for (const DeviceOptions& options :
       {DeviceOptions{.threads = -1}, DeviceOptions{.bn_batch = -1}}) {
    const auto device = torch::MakeTorchDevice(graph, options, "torch:cpu");
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), base::Code::kInvalidInput);
  }
}

INSTANTIATE_TEST_SUITE_P(Torch, DeviceContractTest, ::testing::Values(TorchCpu()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace motley::engine::testing
