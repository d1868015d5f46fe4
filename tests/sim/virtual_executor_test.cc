#include "motley/sim/virtual_executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "motley/plan/noise.h"
#include "motley/plan/shares.h"
#include "motley/run/loop.h"
#include "motley/tune/balancer.h"
#include "tests/run/linear.h"

namespace motley::sim {
namespace {

constexpr std::int64_t kTrain = 300, kBatch = 32;

// The same shares from beginning to end.
class Fixed final : public plan::Controller {
 public:
  explicit Fixed(std::vector<std::int64_t> shares) : shares_(std::move(shares)) {}
  std::optional<plan::Plan> OnEvent(const plan::Event& event) override {
    if (const auto* done = std::get_if<plan::StepDone>(&event)) steps.push_back(*done);
    const auto* joined = std::get_if<plan::DeviceJoined>(&event);
    if (joined == nullptr) return std::nullopt;
    plan_.shares.push_back({joined->device, shares_[plan_.shares.size()]});
    return plan_;
  }
  std::vector<plan::StepDone> steps;

 private:
  const std::vector<std::int64_t> shares_;
  plan::Plan plan_;
};

VirtualDevice Make(const std::string& name, double fixed, double each) {
  return {.name = name,
          .kind = "virtual",
          .curve = {.fixed_seconds = fixed, .seconds_per_sample = each},
          .pace = {},
          .bytes_per_second = 1e6,
          .power = {},
          .secret = nullptr};
}

// A virtual run of the linear model.
class Scene {
 public:
  explicit Scene(std::vector<VirtualDevice> devices, std::int64_t epochs = 2)
      : options_(run::LinearOptions(kBatch)), data_(run::Patterns(kTrain)) {
    options_.epochs = epochs;
    for (const VirtualDevice& device : devices) {
      if (device.secret != nullptr) {
        pools_.push_back({device.name, device.secret->size(), device.secret->ContentHash()});
      }
    }
    devices_ = std::move(devices);
    device_.after_step = [this](const engine::StepRequest& request, engine::StepResult&) {
      for (const data::SampleId id : request.batch->ids) ++seen_[{request.batch->epoch, id}];
      if (on_gradient) on_gradient(request);
    };
  }

  run::TrainReport Run(plan::Controller& controller) {
    run::TrainState state = run::Trainer::Fresh(run::LinearModel(), *data_.train);
    std::int64_t size = kTrain;
    for (const run::PrivatePool& pool : pools_) size += pool.size;
    VirtualExecutor executor({.devices = devices_, .latency_seconds = latency}, options_, device_,
                             data_, clock_, state,
                             run::Pools(data::Ledger(0, size), kTrain, pools_), controller);
    auto report = run::Loop(options_, executor, clock_, {}, std::move(state)).Run();
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    totals = executor.totals();
    gradient_bytes = executor.gradient_bytes();
    return report.ok() ? *report : run::TrainReport{};
  }

  // How often each sample of each epoch was computed.
  const std::map<std::pair<std::uint64_t, data::SampleId>, int>& seen() const { return seen_; }
  double now() const { return clock_.Now(); }

  double latency = 0.0;
  std::function<void(const engine::StepRequest&)> on_gradient;
  std::vector<VirtualTotal> totals;
  std::int64_t gradient_bytes = 0;

 private:
  run::TrainOptions options_;
  data::DataPair data_;
  std::vector<VirtualDevice> devices_;
  std::vector<run::PrivatePool> pools_;
  run::LinearDevice device_{run::LinearGraph()};
  base::VirtualClock clock_;
  std::map<std::pair<std::uint64_t, data::SampleId>, int> seen_;
};

run::TrainState OnOneDevice(std::int64_t epochs) {
  run::TrainOptions options = run::LinearOptions(kBatch);
  options.epochs = epochs;
  const data::DataPair data = run::Patterns(kTrain);
  run::LinearDevice device(run::LinearGraph());
  const base::VirtualClock clock;
  return run::Trainer(options, device, data, clock)
      .Run(run::Trainer::Fresh(run::LinearModel(), *data.train), {})
      .value()
      .state;
}

TEST(VirtualExecutorTest, GivesTheTrajectoryOfOneDeviceForAnyShares) {
  const run::TrainState expected = OnOneDevice(2);
  for (const std::vector<std::int64_t>& shares :
       std::vector<std::vector<std::int64_t>>{{32}, {20, 12}, {1, 0, 31}, {10, 11, 4, 7}}) {
    std::vector<VirtualDevice> devices;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      devices.push_back(Make("d" + std::to_string(i), 0.01, 0.001));
    }
    Scene scene(devices);
    Fixed controller(shares);
    const run::TrainReport report = scene.Run(controller);
    EXPECT_EQ(report.state.step, expected.step);
    EXPECT_EQ(report.state.samples, expected.samples);
    run::ExpectClose(report.state.weights, expected.weights);
    run::ExpectClose(report.state.velocity, expected.velocity);
    EXPECT_NEAR(report.test.loss, expected.test.loss, 1e-4);
  }
}

TEST(VirtualExecutorTest, UsesEveryPublicAndPrivateSampleOnceInAnEpoch) {
  std::vector<VirtualDevice> devices = {Make("host", 0.0, 0.001), Make("a", 0.0, 0.01),
                                        Make("b", 0.0, 0.01)};
  devices[1].secret = std::make_shared<run::PatternSet>(70, 8);
  devices[2].secret = std::make_shared<run::PatternSet>(11, 9);
  Scene scene(devices);
  Fixed controller({22, 5, 5});
  const run::TrainReport report = scene.Run(controller);
  EXPECT_EQ(report.state.samples, 2 * (kTrain + 70 + 11));
  EXPECT_EQ(scene.seen().size(), static_cast<std::size_t>(2 * (kTrain + 70 + 11)));
  for (const auto& [key, count] : scene.seen()) EXPECT_EQ(count, 1);
  EXPECT_GE(scene.totals[1].samples, 2 * 70);
  EXPECT_GE(scene.totals[2].samples, 2 * 11);
  EXPECT_EQ(report.state.private_pools.size(), 2U);
}

TEST(VirtualExecutorTest, AStepTakesTheSlowestDeviceAndTheRing) {
  // 20 samples in 0.1 + 0.02 s, 12 in (0.05 + 0.12) / 0.5 = 0.34 s.
  std::vector<VirtualDevice> devices = {Make("a", 0.1, 0.001), Make("b", 0.05, 0.01)};
  devices[0].bytes_per_second = 4e6;
  devices[1].bytes_per_second = 1e6;
  devices[1].pace.speed = 0.5;
  Scene scene(devices, 1);
  scene.latency = 0.003;
  Fixed controller({20, 12});
  (void)scene.Run(controller);
  const double bytes = static_cast<double>(run::LinearGraph().parameter_count()) * sizeof(float);
  // n = 2: once the model over the slowest link, two latencies.
  const double ring = bytes / 1e6 + 2 * 0.003;
  ASSERT_EQ(controller.steps.size(), 10U);
  const plan::StepDone& step = controller.steps.front();
  ASSERT_EQ(step.parts.size(), 2U);
  EXPECT_NEAR(step.parts[0].compute_seconds, 0.12, 1e-12);
  EXPECT_NEAR(step.parts[1].compute_seconds, 0.34, 1e-12);
  EXPECT_NEAR(step.seconds, 0.34 + ring, 1e-12);
  EXPECT_EQ(scene.gradient_bytes, 10 * 2 * static_cast<std::int64_t>(bytes));

  // Nine whole steps, one of 12 samples (8 and 4), and the test set at a third of the price.
  const double last = (0.05 + 0.04) / 0.5 + ring;
  const double test = 40.0 / 3.0 / (1.0 / 0.001 + 0.5 / 0.01);
  EXPECT_NEAR(scene.now(), 9 * (0.34 + ring) + last + test, 1e-9);
  EXPECT_NEAR(scene.totals[0].compute_seconds, 9 * 0.12 + 0.108 + test, 1e-9);
  EXPECT_NEAR(scene.totals[0].compute_seconds + scene.totals[0].wait_seconds, scene.now(), 1e-9);
}

TEST(VirtualExecutorTest, OneDeviceSendsNothing) {
  Scene scene({Make("alone", 0.0, 0.001)}, 1);
  scene.latency = 1.0;
  Fixed controller({kBatch});
  (void)scene.Run(controller);
  EXPECT_EQ(scene.gradient_bytes, 0);
  EXPECT_NEAR(scene.now(), 0.001 * (kTrain + 40 / 3.0), 1e-9);
}

TEST(VirtualExecutorTest, AnInterruptionSlowsTheDeviceWhileItLasts) {
  std::vector<VirtualDevice> devices = {Make("a", 0.0, 0.01)};
  devices[0].pace.slowdowns = {{0.32, 1.6, 4.0}};  // the second step, exactly
  Scene scene(devices, 1);
  Fixed controller({kBatch});
  (void)scene.Run(controller);
  EXPECT_NEAR(controller.steps[0].seconds, 0.32, 1e-9);
  EXPECT_NEAR(controller.steps[1].seconds, 1.28, 1e-9);
  EXPECT_NEAR(controller.steps[2].seconds, 0.32, 1e-9);
}

TEST(VirtualExecutorTest, MeasuresTheGradientNoise) {
  Scene scene({Make("a", 0.01, 0.001), Make("b", 0.01, 0.001), Make("idle", 0.01, 0.001)}, 4);
  // The same from what the device computed, one gradient after the other.
  plan::NoiseScale expected;
  std::vector<plan::GradientNorm> norms;
  std::vector<double> sum;
  std::vector<std::optional<double>> known;
  scene.on_gradient = [&](const engine::StepRequest& request) {
    plan::GradientNorm norm{request.batch->size(), 0.0};
    sum.resize(request.gradient.size());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const auto value = static_cast<double>(request.gradient[i]);
      norm.squared += value * value;
      sum[i] += value;
    }
    norms.push_back(norm);
    if (norms.size() < 2) return;
    double total = 0.0;
    for (const double value : sum) total += value * value;
    expected.Add(norms, total);
    known.push_back(expected.value());
    norms.clear();
    sum.clear();
  };
  Fixed controller({20, 12, 0});
  (void)scene.Run(controller);
  ASSERT_EQ(controller.steps.size(), 40U);
  ASSERT_EQ(known.size(), 40U);
  int with = 0;
  for (std::size_t i = 0; i < 40; ++i) {
    ASSERT_EQ(controller.steps[i].noise.has_value(), known[i].has_value()) << i;
    if (!known[i]) continue;
    ++with;
    EXPECT_NEAR(*controller.steps[i].noise, *known[i], 1e-3 * *known[i]) << i;
  }
  EXPECT_FALSE(known[18].has_value());
  EXPECT_GE(with, 1);
}

TEST(VirtualExecutorTest, TheLearningRateFollowsTheGradientNoiseWhenTheBatchCannotBeKept) {
  std::vector<VirtualDevice> devices = {Make("a", 0.0, 0.01), Make("b", 0.0, 0.01)};
  for (VirtualDevice& device : devices) device.curve.cap = 10;
  Scene scene(devices, 3);
  struct Noted final : plan::Controller {
    std::optional<plan::Plan> OnEvent(const plan::Event& event) override {
      auto plan = balancer.OnEvent(event);
      if (plan) factors.push_back(plan->learning_rate_factor);
      return plan;
    }
    base::VirtualClock clock;
    tune::Balancer balancer{{.batch = kBatch, .public_samples = kTrain, .keep = false}, clock};
    std::vector<double> factors;
  } controller;
  (void)scene.Run(controller);
  ASSERT_GE(controller.factors.size(), 3U) << "two joined, and the noise became known";
  EXPECT_DOUBLE_EQ(controller.factors[1], 20.0 / kBatch);
  EXPECT_GT(controller.factors[2], 20.0 / kBatch);
  EXPECT_LT(controller.factors[2], 1.0);
}

// The interruption of docs/science: a third of the speed is cut to a quarter.
TEST(VirtualExecutorTest, TheBalancerKeepsTheSpeedThatIsLeft) {
  const auto seconds = [](bool keep) {
    std::vector<VirtualDevice> devices = {Make("a", 0.0, 0.03), Make("b", 0.0, 0.03),
                                          Make("c", 0.0, 0.03)};
    for (VirtualDevice& device : devices) device.bytes_per_second = 1e12;
    devices[0].pace.slowdowns = {{0.0, 1e9, 4.0}};
    Scene scene(devices, 40);
    struct Late final : plan::Controller {
      explicit Late(bool keep_shares) : keep(keep_shares) {}
      std::optional<plan::Plan> OnEvent(const plan::Event& event) override {
        if (const auto* done = std::get_if<plan::StepDone>(&event)) clock.Advance(done->seconds);
        return balancer.OnEvent(event);
      }
      const bool keep;
      base::VirtualClock clock;
      tune::Balancer balancer{{.batch = kBatch, .public_samples = kTrain, .keep = keep}, clock};
    } controller(keep);
    (void)scene.Run(controller);
    return scene.now();
  };
  // 3.0 in theory; less for whole samples of a small batch and the steps before it is noticed.
  EXPECT_GT(seconds(false) / seconds(true), 2.4);
}

}  // namespace
}  // namespace motley::sim
