// The virtual executor with a merged head: devices compute the body, a server the rest.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "motley/engine/native/native_device.h"
#include "motley/optim/sgd.h"
#include "motley/run/loop.h"
#include "motley/sim/virtual_executor.h"
#include "tests/run/linear.h"

namespace motley::sim {
namespace {

constexpr std::int64_t kTrain = 300, kBatch = 32, kFeatures = 6 * 9;
constexpr std::int64_t kBody = 6 * 9 + 6 + 6 + 6, kHead = kFeatures * 5 + 5 + 5 * 3 + 3;

// With all that must not depend on where the net is cut.
graph::Graph Net() {
  graph::GraphBuilder builder("small", {1, run::kSide, run::kSide});
  graph::NodeId node =
      builder.Conv("conv", builder.input(),
                   {.out_channels = 6, .kernel_h = 3, .kernel_w = 3, .pad = {1, 1, 1, 1}});
  node = builder.BatchNorm("bn", node);
  node = builder.Relu("relu", node);
  node = builder.Flatten("flat", node);
  node = builder.FullyConnected("fc1", node, {.out_features = 5, .bias = true});
  node = builder.Dropout("drop", node, {.probability = 0.25F});
  node = builder.FullyConnected("fc2", node, {.out_features = run::kClasses, .bias = true});
  return std::move(builder).Build(node).value();
}

std::unique_ptr<engine::Device> Native(const graph::Graph& graph) {
  return engine::native::MakeNativeDevice(std::make_shared<const graph::Graph>(graph),
                                          {.threads = 2})
      .value();
}

// Lets a test see what a device was asked for and what it answered.
class Watched final : public engine::Device {
 public:
  explicit Watched(std::unique_ptr<engine::Device> device) : device_(std::move(device)) {}
  const graph::Graph& graph() const override { return device_->graph(); }
  std::string kind() const override { return device_->kind(); }
  base::Result<engine::StepResult> Step(const engine::StepRequest& request) override {
    auto result = device_->Step(request);
    if (after_step) after_step(request);
    return result;
  }
  base::Result<engine::StepResult> Forward(const engine::ForwardRequest& request) override {
    return device_->Forward(request);
  }
  std::function<void(const engine::StepRequest&)> after_step;

 private:
  std::unique_ptr<engine::Device> device_;
};

// The same shares and groups as long as the devices are there.
class Fixed final : public plan::Controller {
 public:
  explicit Fixed(std::vector<plan::Share> shares, std::optional<double> momentum = {}) {
    plan_.shares = std::move(shares);
    plan_.momentum = momentum;
  }
  std::optional<plan::Plan> OnEvent(const plan::Event& event) override {
    if (const auto* lost = std::get_if<plan::DeviceLost>(&event)) {
      std::erase_if(plan_.shares, [&](const auto& share) { return share.device == lost->device; });
      plan_.shares[0].samples = kBatch;
      return plan_;
    }
    if (const auto* done = std::get_if<plan::StepDone>(&event)) {
      steps.push_back(*done);
      return std::nullopt;
    }
    if (std::holds_alternative<plan::JobEnded>(event)) return std::nullopt;
    return plan_;
  }
  std::vector<plan::StepDone> steps;

 private:
  plan::Plan plan_;
};

struct Wanted {
  bool merged = true, time_only = false;
  std::optional<double> fails_at;
};

class VirtualHeadTest : public testing::Test {
 protected:
  VirtualHeadTest() { options_.epochs = 2; }

  std::unique_ptr<VirtualExecutor> Make(const std::vector<plan::Share>& shares,
                                        plan::Controller& controller, const Wanted& wanted = {}) {
    VirtualExecutor::Options options{.latency_seconds = 0.001,
                                     .server_seconds = 0.002,
                                     .server_bytes_per_second = 1e6,
                                     .time_only = wanted.time_only};
    for (const plan::Share& share : shares) {
      options.devices.push_back({.name = share.device,
                                 .kind = "virtual",
                                 .curve = {.fixed_seconds = 0.0, .seconds_per_sample = 0.01},
                                 .pace = {},
                                 .bytes_per_second = 1e6});
      options.groups = std::max(options.groups, share.group + 1);
    }
    options.devices.back().fails_at = wanted.fails_at;
    if (wanted.merged) {
      options.merged_head = {.halves = graph::Split(net_).value(),
                             .server = {.seconds_per_sample = 0.004},
                             .body = wanted.time_only ? nullptr : &body_,
                             .head = wanted.time_only ? nullptr : &head_};
    }
    state_ = run::Trainer::Fresh(graph::InitialModel(net_, 5), *data_.train);
    return std::make_unique<VirtualExecutor>(
        std::move(options), options_, *whole_, data_, clock_, state_,
        run::Pools(data::Ledger(0, kTrain), kTrain, {}), controller);
  }
  run::TrainState Train(const std::vector<plan::Share>& shares, const Wanted& wanted) {
    Fixed controller(shares);
    const auto executor = Make(shares, controller, wanted);
    auto report = run::Loop(options_, *executor, clock_, {}, std::move(state_)).Run();
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return report.ok() ? report->state : run::TrainState{};
  }

  const graph::Graph net_ = Net();
  run::TrainOptions options_ = run::LinearOptions(kBatch);
  const data::DataPair data_ = run::Patterns(kTrain);
  const std::unique_ptr<engine::Device> whole_ = Native(net_);
  Watched body_{Native(graph::Split(net_).value().body)};
  Watched head_{Native(graph::Split(net_).value().head)};
  base::VirtualClock clock_;
  run::TrainState state_;
};

void ExpectSame(const run::TrainState& actual, const run::TrainState& expected) {
  EXPECT_EQ(actual.step, expected.step);
  EXPECT_EQ(actual.samples, expected.samples);
  run::ExpectClose(actual.weights, expected.weights);
  run::ExpectClose(actual.velocity, expected.velocity);
  run::ExpectClose(actual.buffers, expected.buffers);
  EXPECT_NEAR(actual.test.loss, expected.test.loss, 1e-4);
}

TEST_F(VirtualHeadTest, GivesTheWeightsOfTheUnsplitNet) {
  for (const std::vector<plan::Share>& shares : std::vector<std::vector<plan::Share>>{
           {{"a", kBatch}}, {{"a", 20}, {"b", 12}}, {{"a", 5}, {"b", 0}, {"c", 27}}}) {
    const run::TrainState expected = Train(shares, {.merged = false});
    ExpectSame(Train(shares, {.merged = true}), expected);
    EXPECT_NE(expected.weights, graph::InitialModel(net_, 5).weights);
  }
}

// A replay of what the two halves were asked for and what they answered.
TEST_F(VirtualHeadTest, HeadIsNeverStaleAndHasTheMomentumOfTheJob) {
  const std::vector<plan::Share> shares = {{"a", kBatch, 0}, {"b", kBatch, 1}, {"c", kBatch, 2}};
  Fixed controller(shares, -0.3);
  const auto executor = Make(shares, controller);
  const std::vector<float> initial = graph::InitialModel(net_, 5).weights;
  std::vector<float> body(initial.begin(), initial.begin() + kBody), body_velocity(kBody);
  std::vector<float> head(initial.begin() + kBody, initial.end()), head_velocity(kHead);
  ASSERT_EQ(std::ssize(head), kHead);
  const optim::SgdOptions sgd{.learning_rate = 0.05F, .momentum = 0.9F};
  optim::SgdOptions stale = sgd;
  stale.momentum = -0.3F;

  int passes = 0;
  head_.after_step = [&](const engine::StepRequest& request) {
    ASSERT_TRUE(std::equal(head.begin(), head.end(), request.weights.begin())) << passes;
    ASSERT_TRUE(
        optim::SgdUpdate(sgd, request.gradient, request.batch->size(), head, head_velocity));
    ++passes;
  };
  struct Gradient {
    std::vector<float> read, sum;
  };
  std::vector<Gradient> gradients;  // in the order of the head's passes
  body_.after_step = [&](const engine::StepRequest& request) {
    gradients.push_back({{request.weights.begin(), request.weights.end()},
                         {request.gradient.begin(), request.gradient.end()}});
  };
  std::vector<std::vector<float>> models = {body};
  for (std::size_t i = 0; i < 7; ++i) {  // the epoch has nine whole batches
    const auto update = executor->Step(sgd);
    ASSERT_TRUE(update.ok()) << update.status().ToString();
    ASSERT_EQ(update->samples, kBatch);
    // Equal groups pass and update in turn.
    EXPECT_EQ(update->group, static_cast<int>(i % 3));
    EXPECT_EQ(gradients.at(i).read, models.at(i - static_cast<std::size_t>(update->staleness)));
    ASSERT_TRUE(optim::SgdUpdate(stale, gradients[i].sum, kBatch, body, body_velocity));
    models.push_back(body);
    run::TrainState state;
    ASSERT_TRUE(executor->Capture(state).ok());
    EXPECT_TRUE(std::equal(body.begin(), body.end(), state.weights.begin())) << i;
    EXPECT_EQ(update->staleness, std::min<std::int64_t>(static_cast<std::int64_t>(i), 2));
  }
  EXPECT_GE(passes, 7);
}

TEST_F(VirtualHeadTest, AStepThatIsGivenUpLeavesNoTrace) {
  const std::vector<plan::Share> shares = {{"a", 16}, {"b", 16}};
  // In the first step; with the head after its pass, when about 0.14 of 0.16 s have passed.
  const run::TrainState expected =
      Train(shares, {.merged = false, .fails_at = clock_.Now() + 0.14});
  int passes = 0;
  head_.after_step = [&](const engine::StepRequest&) { ++passes; };
  ExpectSame(Train(shares, {.merged = true, .fails_at = clock_.Now() + 0.14}), expected);
  EXPECT_EQ(expected.step, 20);
  EXPECT_EQ(passes, 2 + 20) << "two parts in vain";
}

TEST_F(VirtualHeadTest, TakesTheSameTimeWithoutGradients) {
  const std::vector<plan::Share> shares = {
      {"a", 20, 0}, {"b", kBatch, 1}, {"c", 12, 0}, {"d", kBatch, 2}};
  const auto ends = [&](bool time_only) {
    Fixed controller(shares);
    const auto executor = Make(shares, controller, {.time_only = time_only});
    while (!executor->ledger().Complete()) {
      EXPECT_TRUE(executor->Step(options_.sgd).ok());
    }
    std::vector<double> seconds;
    for (const plan::StepDone& step : controller.steps) seconds.push_back(step.seconds);
    return seconds;
  };
  const auto with = ends(false), without = ends(true);
  ASSERT_EQ(with.size(), without.size());
  for (std::size_t i = 0; i < with.size(); ++i) EXPECT_NEAR(with[i], without[i], 1e-9);
}

TEST_F(VirtualHeadTest, SendsActivationsInsteadOfItsWeights) {
  const std::vector<plan::Share> shares = {{"a", 20, 0}, {"b", 12, 0}, {"c", kBatch, 1}};
  Fixed controller(shares);
  const auto executor = Make(shares, controller, {.time_only = true});
  std::int64_t updates = 0, of_pairs = 0;
  for (; !executor->ledger().Complete(); ++updates) {
    const auto update = executor->Step(options_.sgd);
    ASSERT_TRUE(update.ok());
    of_pairs += update->group == 0 ? 1 : 0;
  }
  const std::int64_t own = 4 * (kBody + 2 * 6);  // with the statistics
  EXPECT_EQ(executor->activation_bytes(), 2 * kTrain * kFeatures * 4);
  EXPECT_EQ(executor->gradient_bytes(), own * (updates + 2 * of_pairs));
  EXPECT_EQ(executor->weight_bytes(), own * updates);
  ASSERT_TRUE(executor->Evaluate().ok());
  EXPECT_EQ(executor->weight_bytes(), own * updates + 3 * kHead * 4);
}

}  // namespace
}  // namespace motley::sim
