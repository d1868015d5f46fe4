// What the number of lanes may change in the native engine: nothing but rounding; and for the same
// lanes and kernels, not even that.
#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "differential.h"
#include "motley/engine/native/native_device.h"
#include "motley/engine/reference/reference_device.h"
#include "small_graphs.h"

namespace motley::engine {
namespace {

using graph::GraphBuilder;
using graph::NodeId;
using testing::SmallGraph;

constexpr int kSteps = 20;

// Without ReLU and max pooling, on a kink of which rounding may put a value on the other side: its
// gradient is then another one by far, for good reason.
enum class Shape { kUsual, kSmooth };

template <Shape kShape>
NodeId PlainNet(GraphBuilder& b, NodeId x) {
  x = b.Conv("conv1", x, {.out_channels = 13, .kernel_h = 3, .kernel_w = 3});
  if (kShape == Shape::kUsual) x = b.MaxPool("pool", b.Relu("relu1", x), {});
  return b.Dropout("drop", b.Flatten("flatten", x), {.probability = 0.25F});
}

template <Shape kShape>
NodeId NetWithBatchNorm(GraphBuilder& b, NodeId x) {
  const graph::ConvAttrs conv{.out_channels = 8,
                              .kernel_h = 3,
                              .kernel_w = 3,
                              .pad = graph::Padding::Same(1),
                              .bias = false};
  NodeId y = b.BatchNorm("bn1", b.Conv("conv1", x, conv));
  if (kShape == Shape::kUsual) y = b.Relu("relu1", y);
  return b.Sum("add", y, b.BatchNorm("bn2", b.Conv("conv2", y, conv)));
}

struct Trajectory {
  std::string name;
  graph::NodeId (*body)(GraphBuilder&, NodeId);
  graph::NodeId (*smooth_body)(GraphBuilder&, NodeId);
  std::int64_t bn_batch = 0;
};

void PrintTo(const Trajectory& trajectory, std::ostream* out) { *out << trajectory.name; }

std::shared_ptr<const graph::Graph> BuildNet(const Trajectory& trajectory, Shape shape) {
  const auto body = shape == Shape::kSmooth ? trajectory.smooth_body : trajectory.body;
  return testing::Build({trajectory.name, {3, 7, 7}, body, testing::Frame::kFirst});
}

// The weights after kSteps of SGD with momentum, each step with fresh samples.
std::vector<float> Train(Device& device, std::int64_t samples) {
  constexpr float kRate = 0.05F, kMomentum = 0.9F;
  const graph::Graph& graph = device.graph();
  graph::Model model = testing::RandomModel(graph, 1);
  std::vector<float> velocity(model.weights.size()), gradient(model.weights.size());
  std::vector<float> buffer_sums(model.buffers.size());
  for (int step = 0; step < kSteps; ++step) {
    const auto batch = testing::RandomBatch(graph, samples, static_cast<std::uint64_t>(step));
    const auto result = device.Step({.weights = model.weights,
                                     .batch = &batch,
                                     .seed = 4,
                                     .gradient = gradient,
                                     .buffer_sums = buffer_sums});
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    for (std::size_t i = 0; i < velocity.size(); ++i) {
      velocity[i] = kMomentum * velocity[i] + gradient[i] / static_cast<float>(samples);
      model.weights[i] -= kRate * velocity[i];
    }
  }
  return model.weights;
}

// A core that this process may use.
int FirstCore() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  int core = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(core), &set)) ++core;
  return core;
}

class NativeLanesTest : public ::testing::TestWithParam<Trajectory> {
 protected:
  std::unique_ptr<Device> Make(int threads, const std::map<std::string, std::string>& choices = {},
                               Shape shape = Shape::kUsual) {
    auto device = native::MakeNativeDevice(
        BuildNet(GetParam(), shape),
        {.threads = threads, .bn_batch = GetParam().bn_batch, .kernel_choices = choices});
    EXPECT_TRUE(device.ok()) << device.status().ToString();
    return std::move(device).value();
  }
};

TEST_P(NativeLanesTest, AnyNumberOfLanesFollowsTheSameTrajectory) {
  const auto reference = reference::MakeReferenceDevice(BuildNet(GetParam(), Shape::kSmooth),
                                                        {.bn_batch = GetParam().bn_batch});
  const std::vector<float> expected = Train(*reference, 8);
  for (const int lanes : {1, 2, 3, 5, 8}) {
    EXPECT_LE(testing::RelativeDistance(Train(*Make(lanes, {}, Shape::kSmooth), 8), expected), 1e-4)
        << lanes << " lanes";
  }
}

TEST_P(NativeLanesTest, TheSameLanesAndKernelsGiveTheSameBits) {
  for (const int lanes : {1, 2, 3, 5}) {
    const auto first = Make(lanes);
    const std::vector<float> weights = Train(*first, 11);
    EXPECT_EQ(Train(*first, 11), weights) << lanes << " lanes, the same device again";
    const auto second = Make(lanes, first->kernel_choices());
    EXPECT_EQ(Train(*second, 11), weights) << lanes << " lanes, another device";
    EXPECT_EQ(second->kernel_choices(), first->kernel_choices());
  }
}

// On one core the lanes take turns as the system likes, and one takes pieces of the others.
TEST_P(NativeLanesTest, ItDoesNotMatterWhichLaneComputesWhat) {
  for (const int lanes : {2, 3}) {
    const auto free = Make(lanes);
    const std::vector<float> weights = Train(*free, 150);
    const int core = FirstCore();
    auto crowded =
        native::MakeNativeDevice(BuildNet(GetParam(), Shape::kUsual),
                                 {.cores = std::vector<int>(static_cast<std::size_t>(lanes), core),
                                  .bn_batch = GetParam().bn_batch,
                                  .kernel_choices = free->kernel_choices()});
    ASSERT_TRUE(crowded.ok()) << crowded.status().ToString();
    for (int run = 0; run < 3; ++run) EXPECT_EQ(Train(**crowded, 150), weights) << lanes;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Nets, NativeLanesTest,
    ::testing::Values(Trajectory{"Plain", PlainNet<Shape::kUsual>, PlainNet<Shape::kSmooth>},
                      Trajectory{"BatchNorm", NetWithBatchNorm<Shape::kUsual>,
                                 NetWithBatchNorm<Shape::kSmooth>},
                      Trajectory{"VirtualBatches", NetWithBatchNorm<Shape::kUsual>,
                                 NetWithBatchNorm<Shape::kSmooth>, 2}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace motley::engine
