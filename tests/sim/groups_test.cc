// The virtual executor with several groups: stale gradients, changing plans, failures.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "motley/run/loop.h"
#include "motley/sim/virtual_executor.h"
#include "tests/run/linear.h"

namespace motley::sim {
namespace {

constexpr std::int64_t kTrain = 300, kBatch = 10;

// Gives the plans of a script: from update `first` on, device i is in group `groups[i]`.
class Script final : public plan::Controller {
 public:
  struct Scene {
    std::int64_t first = 0;
    std::vector<int> groups;
  };
  explicit Script(std::vector<Scene> scenes) : scenes_(std::move(scenes)) {}

  std::optional<plan::Plan> OnEvent(const plan::Event& event) override {
    if (const auto* joined = std::get_if<plan::DeviceJoined>(&event)) {
      names_.push_back(joined->device);
      if (names_.size() < scenes_[0].groups.size()) return std::nullopt;
      return Next();
    }
    if (const auto* lost = std::get_if<plan::DeviceLost>(&event)) {
      gone.insert(lost->device);
      return PlanOf(scenes_[now_ - 1]);
    }
    if (std::holds_alternative<plan::JobEnded>(event)) return std::nullopt;
    steps.push_back(std::get<plan::StepDone>(event));
    if (now_ == scenes_.size() || steps.back().step < scenes_[now_].first) return std::nullopt;
    return Next();
  }

  std::vector<plan::StepDone> steps;
  std::set<std::string> gone;
  std::optional<double> momentum;
  double learning_rate_factor = 1.0;

 private:
  plan::Plan Next() { return PlanOf(scenes_[now_++]); }
  plan::Plan PlanOf(const Scene& scene) const {
    // Groups that have lost all their devices are closed up.
    std::map<int, int> number;
    std::map<int, std::int64_t> members;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (!gone.contains(names_[i])) ++members[scene.groups[i]];
    }
    for (const auto& [group, count] : members) number.emplace(group, number.size());
    plan::Plan plan;
    plan.momentum = momentum;
    plan.learning_rate_factor = learning_rate_factor;
    std::map<int, std::int64_t> given;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (gone.contains(names_[i])) continue;
      const int group = scene.groups[i];
      // The last one takes what is left.
      const std::int64_t share = --members[group] == 0 ? kBatch - given[group] : 1;
      given[group] += share;
      plan.shares.push_back({names_[i], share, number[group]});
    }
    return plan;
  }

  const std::vector<Scene> scenes_;
  std::size_t now_ = 0;
  std::vector<std::string> names_;
};

std::vector<VirtualDevice> Devices(std::size_t count, const std::string& service) {
  std::vector<VirtualDevice> devices;
  for (std::size_t i = 0; i < count; ++i) {
    devices.push_back({.name = "d" + std::to_string(i),
                       .kind = "virtual",
                       .curve = {.fixed_seconds = 0.0, .seconds_per_sample = 0.01},
                       .pace = {},
                       .service = Service::Parse(service).value(),
                       .bytes_per_second = 1e9,
                       .power = {},
                       .secret = nullptr,
                       .fails_at = {}});
  }
  return devices;
}

// The linear model on a virtual cluster, one update at a time.
class Cluster {
 public:
  Cluster(VirtualExecutor::Options options, plan::Controller& controller)
      : options_(run::LinearOptions(kBatch)),
        data_(run::Patterns(kTrain)),
        state_(run::Trainer::Fresh(run::LinearModel(), *data_.train)) {
    std::vector<run::PrivatePool> pools;
    std::int64_t size = kTrain;
    for (const VirtualDevice& device : options.devices) {
      if (device.secret == nullptr) continue;
      pools.push_back({device.name, device.secret->size(), "secret"});
      size += device.secret->size();
    }
    device_.after_step = [this](const engine::StepRequest& request, engine::StepResult&) {
      reads.emplace_back(request.weights.begin(), request.weights.end());
      for (const data::SampleId id : request.batch->ids) ++seen[{request.batch->epoch, id}];
    };
    executor = std::make_unique<VirtualExecutor>(
        std::move(options), options_, device_, data_, clock, state_,
        run::Pools(data::Ledger(0, size), kTrain, pools), controller);
  }

  // Until the epoch is complete.
  std::vector<run::Update> Epoch() {
    std::vector<run::Update> updates;
    while (!executor->ledger().Complete()) {
      auto update = executor->Step(sgd);
      EXPECT_TRUE(update.ok()) << update.status().ToString();
      if (!update.ok() || update->samples == 0) break;
      updates.push_back(*update);
      models.push_back(Weights());
    }
    EXPECT_TRUE(executor->ledger().Complete());
    return updates;
  }
  std::vector<float> Weights() {
    run::TrainState state;
    EXPECT_TRUE(executor->Capture(state).ok());
    return state.weights;
  }

  optim::SgdOptions sgd{.learning_rate = 0.05F, .momentum = 0.0F};
  base::VirtualClock clock;
  std::unique_ptr<VirtualExecutor> executor;
  std::vector<std::vector<float>> reads;   // the weights of every gradient, in order
  std::vector<std::vector<float>> models;  // after every update
  std::map<std::pair<std::uint64_t, data::SampleId>, int> seen;

 private:
  run::TrainOptions options_;
  data::DataPair data_;
  run::TrainState state_;
  run::LinearDevice device_{run::LinearGraph()};
};

TEST(VirtualGroupsTest, ApplyEachGradientAsStaleAsItIsSaidToBe) {
  Script script({{0, {0, 1, 2, 3}}});
  Cluster cluster({.devices = Devices(4, "exponential"), .groups = 4}, script);
  cluster.models.push_back(cluster.Weights());
  const std::vector<run::Update> updates = cluster.Epoch();
  ASSERT_EQ(updates.size(), 30U);
  // Gradients are computed in the order of the reads: at the start by all groups, then by the group
  // that has just updated.
  std::map<int, std::size_t> read = {{0, 0}, {1, 1}, {2, 2}, {3, 3}};
  std::size_t reads = 4;
  std::int64_t stale = 0;
  for (std::size_t t = 0; t < updates.size(); ++t) {
    const auto staleness = static_cast<std::size_t>(updates[t].staleness);
    ASSERT_LE(staleness, t);
    ASSERT_EQ(cluster.reads[read[updates[t].group]], cluster.models[t - staleness]) << t;
    stale += updates[t].staleness;
    read[updates[t].group] = reads++;
  }
  EXPECT_GT(stale, 50);
}

TEST(VirtualGroupsTest, KeepTheBoundOfStalenessAndUseEverySampleOnce) {
  const auto stalest = [](std::int64_t bound) {
    // Also while the plan changes, when steps of both plans are under way.
    Script script({{0, {0, 1, 2, 3}}, {11, {0, 0, 1, 1}}, {17, {0, 1, 2, 3}}, {47, {3, 2, 1, 0}}});
    Cluster cluster({.devices = Devices(4, "exponential"), .max_staleness = bound, .groups = 4},
                    script);
    std::int64_t most = 0;
    for (int epoch = 0; epoch < 4; ++epoch) {
      if (epoch > 0) cluster.executor->StartNextEpoch();
      for (const run::Update& update : cluster.Epoch()) most = std::max(most, update.staleness);
    }
    EXPECT_EQ(cluster.seen.size(), static_cast<std::size_t>(4 * kTrain));
    for (const auto& [key, count] : cluster.seen) EXPECT_EQ(count, 1);
    return most;
  };
  EXPECT_GT(stalest(0), 5);
  EXPECT_EQ(stalest(5), 5);
  EXPECT_EQ(stalest(3), 3);
}

TEST(VirtualGroupsTest, UseEverySampleOnceWhileTheNumberOfGroupsChanges) {
  Script script({{0, {0, 0, 0, 0}},
                 {5, {0, 1, 2, 3}},
                 {11, {0, 0, 1, 1}},
                 {17, {0, 0, 0, 0}},
                 {33, {1, 1, 0, 2}},
                 {47, {0, 1, 1, 0}}});
  Cluster cluster({.devices = Devices(4, "exponential")}, script);
  std::vector<run::Update> updates = cluster.Epoch();
  cluster.executor->StartNextEpoch();
  const auto more = cluster.Epoch();
  updates.insert(updates.end(), more.begin(), more.end());
  EXPECT_EQ(cluster.seen.size(), static_cast<std::size_t>(2 * kTrain));
  for (const auto& [key, count] : cluster.seen) EXPECT_EQ(count, 1);
  std::int64_t samples = 0;
  for (const run::Update& update : updates) samples += update.samples;
  EXPECT_EQ(samples, 2 * kTrain);
  // Every step was told, and the groups of each plan took part.
  ASSERT_EQ(script.steps.size(), updates.size());
  for (std::size_t i = 0; i < updates.size(); ++i) {
    EXPECT_EQ(script.steps[i].step, static_cast<std::int64_t>(i + 1));
    EXPECT_EQ(script.steps[i].staleness, updates[i].staleness);
  }
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(updates[i].staleness, 0);
  EXPECT_EQ(script.steps[20].parts.size(), 4U);
  EXPECT_EQ(cluster.executor->groups(), 2);
}

TEST(VirtualGroupsTest, SwitchBetweenOneAndFourGroupsFortyTimesWithoutAJump) {
  constexpr std::int64_t kUpdates = 2000, kEvery = 50;
  std::vector<Script::Scene> scenes;
  for (std::int64_t first = 0; first < kUpdates; first += kEvery) {
    const bool one = first / kEvery % 2 == 0;
    scenes.push_back({first, one ? std::vector<int>{0, 0, 0, 0} : std::vector<int>{0, 1, 2, 3}});
  }
  Script script(scenes);
  Cluster cluster({.devices = Devices(4, "exponential")}, script);
  std::vector<double> losses;  // of every update, per sample
  std::int64_t samples = 0, epochs = 0;
  while (static_cast<std::int64_t>(losses.size()) < kUpdates) {
    for (const run::Update& update : cluster.Epoch()) {
      losses.push_back(update.loss_sum / static_cast<double>(update.samples));
      samples += update.samples;
    }
    cluster.executor->StartNextEpoch();
    ++epochs;
  }
  EXPECT_EQ(samples, epochs * kTrain);
  EXPECT_EQ(cluster.seen.size(), static_cast<std::size_t>(epochs * kTrain));
  for (const auto& [key, count] : cluster.seen) ASSERT_EQ(count, 1);
  // Falling all the time, as it does with one group: no window of one scene above the one before by
  // more than its noise.
  const auto mean = [&](std::size_t scene) {
    double sum = 0.0;
    for (std::size_t i = 0; i < kEvery; ++i) sum += losses[scene * kEvery + i];
    return sum / static_cast<double>(kEvery);
  };
  for (std::size_t scene = 1; scene < kUpdates / kEvery; ++scene) {
    EXPECT_LT(mean(scene), mean(scene - 1) + 0.05) << scene;
  }
  EXPECT_LT(mean(kUpdates / kEvery - 1), 0.7 * mean(0));
}

TEST(VirtualGroupsTest, ApplyAStepUnderWayAsItWasBegun) {
  Script script({{0, {0, 1, 2, 3}}, {4, {0, 1, 2, 3}}});
  Cluster cluster({.devices = Devices(4, "constant"), .groups = 4}, script);
  script.learning_rate_factor = 0.0;  // of the second plan, while three steps are under way
  std::vector<float> before = cluster.Weights();
  for (int update = 0; update < 12; ++update) {
    ASSERT_TRUE(cluster.executor->Step(cluster.sgd).ok());
    const std::vector<float> after = cluster.Weights();
    EXPECT_EQ(before != after, update < 4 + 3) << update;
    before = after;
  }
}

TEST(VirtualGroupsTest, LoseNoSampleWithAFailedDevice) {
  auto devices = Devices(5, "exponential");
  devices[1].fails_at = 0.35;
  devices[4].fails_at = 0.6;
  devices[1].secret = std::make_shared<run::PatternSet>(20, 8);
  Script script({{0, {0, 0, 1, 1, 2}}});
  Cluster cluster({.devices = devices, .groups = 3}, script);
  (void)cluster.Epoch();
  EXPECT_EQ(script.gone, (std::set<std::string>{"d1", "d4"}));
  // Public ones are computed by somebody; those of the lost device are given up and counted.
  std::int64_t once = 0;
  std::set<std::string> working;
  for (const auto& step : script.steps) {
    for (const auto& part : step.parts) once += part.samples;
  }
  for (std::size_t i = script.steps.size() - 5; i < script.steps.size(); ++i) {
    for (const auto& part : script.steps[i].parts) working.insert(part.device);
  }
  EXPECT_EQ(once, cluster.executor->ledger().committed());
  EXPECT_EQ(once + cluster.executor->unreachable(), kTrain + 20);
  EXPECT_GT(cluster.executor->unreachable(), 0);
  EXPECT_FALSE(working.contains("d1"));
  EXPECT_FALSE(working.contains("d4"));
}

TEST(VirtualGroupsTest, EndWhenEveryDeviceHasFailed) {
  auto devices = Devices(2, "constant");
  devices[0].fails_at = 0.25;
  devices[1].fails_at = 0.35;
  Script script({{0, {0, 1}}});
  Cluster cluster({.devices = devices, .groups = 2}, script);
  for (int i = 0; i < 100; ++i) {
    const auto update = cluster.executor->Step(cluster.sgd);
    if (update.ok()) continue;
    EXPECT_EQ(update.status().code(), base::Code::kUnavailable);
    return;
  }
  FAIL() << "it went on without devices";
}

TEST(VirtualGroupsTest, SpreadPrivateSamplesOverTheEpoch) {
  auto devices = Devices(2, "constant");
  devices[1].secret = std::make_shared<run::PatternSet>(60, 8);
  Script script({{0, {0, 1}}});
  Cluster cluster({.devices = devices, .groups = 2}, script);
  const auto updates = cluster.Epoch();
  // 36 updates, 18 of them by the group with the 60 samples: about 3 in each, to the end.
  EXPECT_EQ(updates.size(), 36U);
  EXPECT_EQ(cluster.seen.size(), static_cast<std::size_t>(kTrain + 60));
  EXPECT_LE(cluster.executor->totals()[1].samples, 190);
  EXPECT_GE(cluster.executor->totals()[0].samples, 170);
}

TEST(VirtualGroupsTest, UseTheMomentumOfThePlan) {
  const auto weights = [](std::optional<double> of_plan, float of_job) {
    Script script({{0, {0, 1}}});
    script.momentum = of_plan;
    Cluster cluster({.devices = Devices(2, "constant"), .groups = 2}, script);
    cluster.sgd.momentum = of_job;
    (void)cluster.Epoch();
    return cluster.Weights();
  };
  EXPECT_EQ(weights(-0.5, 0.9F), weights(std::nullopt, -0.5F));
  EXPECT_NE(weights(std::nullopt, 0.9F), weights(std::nullopt, -0.5F));
}

TEST(VirtualGroupsTest, TakeTheSameTimeWithoutGradients) {
  const auto seconds = [](bool time_only) {
    Script script({{0, {0, 1, 2, 0}}, {9, {0, 1, 0, 1}}});
    Cluster cluster({.devices = Devices(4, "lognormal:0.5"),
                     .latency_seconds = 0.001,
                     .server_seconds = 0.002,
                     .groups = 3,
                     .time_only = time_only},
                    script);
    (void)cluster.Epoch();
    EXPECT_EQ(cluster.reads.empty(), time_only);
    std::vector<double> all = {cluster.clock.Now()};
    for (const plan::StepDone& step : script.steps) all.push_back(step.seconds);
    return all;
  };
  EXPECT_EQ(seconds(false), seconds(true));
}

TEST(VirtualGroupsTest, SendTheirSumAndFetchTheModel) {
  Script script({{0, {0, 0, 1}}});
  Cluster cluster({.devices = Devices(3, "constant"), .groups = 2}, script);
  const auto updates = cluster.Epoch();
  const std::int64_t bytes = run::LinearGraph().parameter_count() * 4;
  std::int64_t of_pairs = 0;
  for (const auto& step : script.steps) of_pairs += step.parts.size() == 2 ? 1 : 0;
  const auto count = static_cast<std::int64_t>(updates.size());
  EXPECT_GT(of_pairs, 0);
  EXPECT_EQ(cluster.executor->gradient_bytes(), bytes * (count + 2 * of_pairs));
  EXPECT_EQ(cluster.executor->weight_bytes(), bytes * count);
}

}  // namespace
}  // namespace motley::sim
